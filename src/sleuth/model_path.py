"""Whether a model is where its name says: a folder of this machine, or a repository of the hub, which is asked once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sleuth.types import SleuthError

HUB_SECONDS = 5.0
"""How long the hub may take to answer."""


def require_model(path: str) -> None:
    """Raises SleuthError unless `path` is a folder, or the id of a model that is on the hub or was downloaded before.

    The disk is looked at first. The hub is asked only for what reads OWNER/NAME where no folder OWNER is here, and only
    once: transformers would ask again and again, for most of a minute a file. Where it does not answer, this process
    asks it nothing more.
    """
    if Path(path).exists():
        return
    absent = f"{path}: no such folder" + ("" if path.startswith(("/", "~")) else f" here (from {Path.cwd()})")
    if path.startswith(("/", ".", "~")) or path.count("/") != 1:
        raise SleuthError(f"{absent}, and a hub id would read OWNER/NAME")
    if (owner := Path(path).parent).is_dir():
        raise SleuthError(f"{absent}: there is a folder {owner}, and so it is not looked for on the hub")
    if (problem := _problem_on_hub(path)) is not None:
        raise SleuthError(f"{absent}, and {problem}")


def model_name(path: str) -> str:
    """The name of a model without its owner or folder: `e5-base-v2` of `intfloat/e5-base-v2`, of `/models/e5-base-v2`
    and of its snapshot in the hub's cache."""
    parts = Path(path).parts
    return parts[-3].rpartition("--")[2] if len(parts) > 2 and parts[-2] == "snapshots" else Path(path).name


@cache
def _problem_on_hub(model: str) -> str | None:
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(model, timeout=HUB_SECONDS)
        return None
    except HFValidationError:
        return "no hub id either, which would read OWNER/NAME"
    except GatedRepoError:  # it is there; whether it may be read shows when it is
        return None
    except RepositoryNotFoundError:
        problem = "the hub has no model of that name, or none that you may read"
    except HfHubHTTPError as error:
        problem = f"the hub answers {error.response.status_code} {error.response.reason_phrase}"
    except Exception as error:  # of whichever HTTP client the hub's package has
        problem = f"the hub could not be reached: {' '.join(str(error).split())[:200] or type(error).__name__}"
    if not isinstance(try_to_load_from_cache(model, "config.json"), str):
        return problem
    constants.HF_HUB_OFFLINE = True  # what was downloaded is read without asking for each file again
    return None
