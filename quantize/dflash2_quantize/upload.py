"""Puts a written checkpoint on the Hub, when it was asked for."""

from __future__ import annotations

from pathlib import Path

from dflash2_mlx.errors import DFlashError, RequestError


def check_upload(repository: str) -> None:
    """Raises RequestError (param upload) for what is no repository's name, and when nobody is logged in."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise RequestError(f"--upload {repository!r} is no repository's name ({error})", param="upload") from None
    if get_token() is None:
        raise RequestError(
            f"--upload {repository}: nobody is logged in to the Hub; run `hf auth login` or set HF_TOKEN",
            param="upload",
        )


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """Create `repository` where it is not there and put the files of `folder` into it; gives its address.

    Raises DFlashError with what the Hub says; the folder stays as it is.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError as HubError  # type: ignore[attr-defined]

    api = HfApi()
    try:
        created = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message="Quantised drafter for MLX")
    except (HubError, OSError, ValueError) as error:  # HubError: also of the transport, such as a proxy
        raise DFlashError(
            f"the checkpoint is in {folder}, but the upload to {repository} failed ({error}): "
            "check the login and the name's owner, then `hf upload` sends the folder"
        ) from None
    return str(created)
