# Sleuth on a CUDA GPU: docker build -t sleuth . && docker run --gpus all -v "$PWD:/data" sleuth train recipe.toml
# Any image with torch 2.11 or newer serves as the base.
ARG BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime
FROM ${BASE}

# FlexAttention compiles its kernels with Triton, which needs a C compiler.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/sleuth
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY models models
COPY published published
COPY recipes recipes
ENV PIP_BREAK_SYSTEM_PACKAGES=1
RUN pip install --no-cache-dir -c constraints.txt ".[dense,hub,lora,trackers]"

RUN useradd --create-home sleuth && mkdir /data && chown sleuth /data
USER sleuth
WORKDIR /data
ENTRYPOINT ["sleuth"]
CMD ["--help"]
