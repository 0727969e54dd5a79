"""RAFT: the best answers of each sample group alone, learned as given ones are."""

import numpy as np
from numpy.typing import NDArray


def best_answers(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 where `R_i` is the largest of the group, else 0: no answer is made less likely.

    RAFT, arXiv 2304.06767, algorithm 1, with a train step on each batch: `loss: reinforce` then is
    the cross-entropy of the best answers, `-mean(log p)` over their tokens. With rewards of 0 and 1
    these are all right ones (expert iteration, ReST-EM, arXiv 2312.06585). `loss: clip` is RAFT++,
    arXiv 2504.11343. The other answers get no pass and are not counted, unless a KL penalty or an
    entropy bonus gives them a gradient; a group of equal rewards has no best.
    """
    return (rewards == rewards.max()).astype(np.float64)
