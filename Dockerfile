# The page in a container, on port 7860, as a user without rights, with one writable folder for models.
#
#   docker build -t tfviz .
#   docker run -p 7860:7860 -v tfviz-cache:/cache tfviz
#
# With --build-arg:
#   MODELS=later             leaves the default models out; the first start fetches them
#   TORCH=torch==2.13.0      one release of the range in requirements.txt
#   PIP_INDEX_URL=..., PIP_EXTRA_INDEX_URL=...    another package index, such as one with CPU builds of torch
FROM python:3.12-slim

ARG TORCH=""
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG MODELS=included

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860 \
    GRADIO_ANALYTICS_ENABLED=False \
    GRADIO_TEMP_DIR=/cache/gradio \
    TFVIZ_CACHE=/cache/tfviz \
    TFVIZ_ALLOW_LOCAL=0 \
    HF_HOME=/cache/huggingface

# A wheel exists for every package, so no compiler comes in and none has to go.
COPY requirements.txt /app/
RUN pip install --only-binary=:all: $TORCH -r /app/requirements.txt \
    && useradd --uid 1000 --create-home tfviz \
    && install --directory --owner=1000 --group=1000 /cache

USER 1000
WORKDIR /app
COPY . .
RUN test "$MODELS" != included || python -m tfviz.sources.fetch

VOLUME /cache
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['GRADIO_SERVER_PORT'], timeout=4)"]
CMD ["python", "app.py"]
