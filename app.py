"""tfviz: see inside a Transformer. Run `python app.py` and open the address it prints."""

import logging

from tfviz.config import Settings
from tfviz.ui.shell import build_app, launch

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
logging.getLogger("httpx").setLevel(logging.WARNING)  # Gradio asks itself whether it is up
settings = Settings.from_environment()
demo = build_app(settings)

if __name__ == "__main__":
    launch(demo, settings)
