"""Definitions of a run's figures, by their names in `metrics.jsonl`.

Page, command and ledger show a figure under one name; the page shows its definition on hover.
"""

FIGURES = {
    "reward": "Mean reward of the graded answers of a train step's batch.",
    "rewards": "Mean of each named reward of those answers, before its weight.",
    "heldout_pass_rate": "pass@1 of the first held-out set: the chance that an answer to one of "
    "its tasks gets a reward of 1 or more, mean over tasks.",
    "tokens_sampled": "Response tokens sampled for training since the run began: of every sample "
    "group and every attempt, whatever became of them. The ledger accounts for each.",
    "tokens_evaluated": "Response tokens of held-out evaluations since the run began. No train "
    "step uses them, and the ledger does not count them.",
    "tokens_trained": "Response tokens with a gradient in a train step.",
    "tokens_per_second": "Response tokens that arrived during the last train step, of training "
    "and evaluations, by its wall time.",
    "policy_version": "Version of the weights that the newest train step published. Each publish "
    "adds one.",
    "staleness_mean": "Policy versions between the oldest token of a sample group and the step "
    "that trains it: mean over the batch.",
    "staleness_max": "The largest staleness in the batch.",
    "given_answers": "Sample groups of the batch whose answers are given.",
    "truncated": "Share of the batch's answers that ended at `sampling.max_tokens`.",
    "elapsed_s": "Wall time of the run, before a resumption too.",
    "response_tokens_mean": "Mean length of the batch's answers, tokens.",
    "sampled_tokens_mean": "Mean length of all answers sampled meanwhile, tokens.",
    "trainer.learning_rate": "Learning rate of the train step's last update.",
    "groups_trained": "Sample groups of the batch with something to learn from.",
    "groups_filtered": "Sample groups of the batch whose rewards are all equal.",
    "rollout_s_mean": "Seconds from a group's request to its last answer, mean over the batch.",
    "rollout_s_max": "The slowest rollout of the batch, seconds.",
    "score_s_mean": "Seconds from a group's last answer to its last score, mean over the batch.",
    "seconds.wait": "Seconds in which the trainer waited for the batch.",
    "seconds.train": "Seconds of the train step itself.",
    "seconds.save": "Seconds of the checkpoint after it.",
    "trainer.entropy": "Mean entropy of the policy over trained tokens, nats.",
    "trainer.kl_behaviour": "KL divergence from the policy that sampled, nats.",
    "trainer.kl_proximal": "KL divergence from the policy at the start of the update, nats.",
    "trainer.kl_reference": "KL divergence from the reference model, nats.",
    "trainer.clip_fraction_low": "Share of trained tokens clipped at the lower bound.",
    "trainer.clip_fraction_high": "Share of trained tokens clipped at the upper bound.",
    "trainer.truncated_fraction": "Share of trained tokens whose correction for the engine's "
    "mismatch was capped.",
    "trainer.masked_fraction": "Share of trained tokens left out for the engine's mismatch.",
    "trainer.mismatch_max": "Largest |logprob gap| between engine and trainer over tokens sampled "
    "under the version that the trainer held, nats.",
    "trainer.mismatch_p99_lag1": "99th percentile of that gap over tokens sampled one version "
    "earlier, nats.",
    "trainer.cross_entropy": "Mean cross-entropy of given answers, nats a token.",
    "trainer.kl_teacher": "Estimate of the divergence of policy and teacher on the policy's "
    "tokens, nats a token.",
    "trainer.grad_norm": "Norm of the gradient before it is clipped.",
    "trainer.gradient_noise_scale": "Answers of an update beyond which more of them add "
    "little: the gradient's noise over its signal, from AdamW's moments.",
    "trainer.token_share_max": "The largest share that a single token has in the sum of the slopes "
    "of the loss by each token's logprob.",
    "trainer.loss": "Loss of the train step.",
    "ledger.admitted": "Sample groups that the run began, or all response tokens sampled for them.",
    "ledger.trained": "Sample groups that a train step learned from.",
    "ledger.filtered": "Sample groups with nothing to learn from: all rewards are equal.",
    "ledger.expired": "Sample groups dropped because they would have been too old.",
    "ledger.failed": "Sample groups that were not sampled, or with too few graded answers.",
    "ledger.in_flight": "Sample groups that are being sampled or scored, or wait for their batch.",
}
