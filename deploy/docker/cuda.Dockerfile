# Millrace on NVIDIA GPUs; the image of deploy/kuberay.
#   docker build -f deploy/docker/cuda.Dockerfile -t millrace:cuda .
#   docker run --rm --gpus all --shm-size=64g millrace:cuda nvidia-smi
# torch and vLLM bring CUDA's libraries; the compiler is for kernels that vLLM and torch make
# while they run.
FROM nvidia/cuda:13.0.1-devel-ubuntu22.04

# hadolint ignore=DL3008
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    ca-certificates g++ git libnuma1 python3.11 python3.11-dev python3.11-venv wget \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 millrace
WORKDIR /opt/millrace
RUN chown millrace /opt/millrace
USER 1000
ENV VIRTUAL_ENV=/opt/millrace/.venv PATH=/opt/millrace/.venv/bin:$PATH \
    RAY_USAGE_STATS_ENABLED=0 RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S=1

RUN python3.11 -m venv .venv && pip install --no-cache-dir 'uv==0.9.*'
COPY --chown=millrace pyproject.toml README.md LICENSE ./
RUN mkdir services && touch services/__init__.py \
 && uv pip install --no-cache -e '.[cuda,data]'

COPY --chown=millrace services services
COPY --chown=millrace environments environments
COPY --chown=millrace millrace_tools millrace_tools
COPY --chown=millrace examples examples
COPY --chown=millrace deploy deploy

EXPOSE 8000 8265 8080
CMD ["millrace", "--help"]
