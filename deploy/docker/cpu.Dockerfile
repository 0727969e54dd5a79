# Millrace without GPUs: the demo, the reward service, a laptop's cluster.
#   docker build -f deploy/docker/cpu.Dockerfile -t millrace:cpu .
#   docker run --rm --shm-size=2g millrace:cpu millrace demo
# What the sandboxes' tier A needs of `docker run` is in docs/deploying.md.
FROM python:3.11-slim-bookworm

# g++ compiles what is graded, and torch.compile's kernels; the CPU build of vLLM loads libnuma.
# hadolint ignore=DL3008
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends g++ git libnuma1 \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 millrace
WORKDIR /opt/millrace
RUN chown millrace /opt/millrace
USER 1000
ENV VIRTUAL_ENV=/opt/millrace/.venv PATH=/opt/millrace/.venv/bin:$PATH \
    RAY_USAGE_STATS_ENABLED=0 RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S=1

# Dependencies first: they change less often than the code. An index of your own that has torch's
# CPU build: --build-arg TORCH_BACKEND=
ARG TORCH_BACKEND=cpu
RUN python -m venv .venv && pip install --no-cache-dir 'uv==0.9.*'
COPY --chown=millrace pyproject.toml README.md LICENSE ./
RUN mkdir services && touch services/__init__.py \
 && uv pip install --no-cache ${TORCH_BACKEND:+"--torch-backend=$TORCH_BACKEND"} -e '.[cpu,data]'

COPY --chown=millrace services services
COPY --chown=millrace environments environments
COPY --chown=millrace millrace_tools millrace_tools
COPY --chown=millrace examples examples
COPY --chown=millrace deploy deploy

# The router and the orchestrator; Ray's dashboard; metrics.
EXPOSE 8000 8265 8080
CMD ["millrace", "--help"]
