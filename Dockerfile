# A server for exported models: docker run -p 8000:8000 -e FLUID_SERVE_TOKEN=... -v ./models:/models:ro IMAGE /models/x.fluid
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY fluid fluid
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir '.[serve]'

FROM python:3.12-slim
RUN useradd --system --uid 10001 fluid
COPY --from=build /venv /venv
USER fluid
ENV PYTHONUNBUFFERED=1 JAX_PLATFORMS=cpu
EXPOSE 8000
# Whoever reaches the container needs the token of FLUID_SERVE_TOKEN; without one the server does not start.
ENTRYPOINT ["/venv/bin/python", "-m", "fluid", "serve", "--host", "0.0.0.0"]
HEALTHCHECK --start-period=60s CMD ["/venv/bin/python", "-c", \
    "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/health/ready')"]
