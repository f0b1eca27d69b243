# This image serves exported models: docker run -p 8000:8000 -e FLUID_SERVE_TOKEN=... -v ./models:/models:ro IMAGE /models/x.fluid
# The libraries are the libraries of requirements.lock, verified by checksum. The base image is the newest image with its
# name. To pin the base image, use its digest: docker build --build-arg PYTHON=python:3.12-slim@sha256:...
# For NVIDIA GPUs, use docker build --build-arg DEVICE=cuda and docker run --gpus all.
ARG PYTHON=python:3.12-slim
ARG DEVICE=cpu
FROM ${PYTHON} AS build
ARG DEVICE
WORKDIR /src
COPY requirements.lock requirements-cuda.lock pyproject.toml README.md LICENSE ./
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r requirements.lock
RUN case "$DEVICE" in cpu) ;; \
    cuda) /venv/bin/pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r requirements-cuda.lock ;; \
    *) echo "DEVICE=$DEVICE: expected cpu or cuda, as in --build-arg DEVICE=cuda" >&2; exit 2 ;; esac
COPY fluid fluid
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${PYTHON}
ARG DEVICE
RUN useradd --system --uid 10001 fluid
COPY --from=build /venv /venv
USER fluid
# To use another port, set FLUID_SERVE_PORT_NUMBER=9000. The health check ignores arguments such as --port.
ENV PYTHONUNBUFFERED=1 JAX_PLATFORMS=${DEVICE} FLUID_SERVE_PORT_NUMBER=8000
EXPOSE 8000
# Clients need the token in FLUID_SERVE_TOKEN. The server does not start without a token.
ENTRYPOINT ["/venv/bin/python", "-m", "fluid", "serve", "--host", "0.0.0.0"]
HEALTHCHECK --start-period=60s CMD ["/venv/bin/python", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"FLUID_SERVE_PORT_NUMBER\"]}/v2/health/ready')"]
