"""A run of an example's script that is stopped once it has saved."""

from contextlib import contextmanager

import pytest

from dynbatch import train


@contextmanager
def after_its_first_save():
    """Ctrl-C comes when the block's first checkpoint is written."""
    save = train.save_checkpoint

    def stop(*arguments, **more):
        save(*arguments, **more)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "save_checkpoint", stop)
        yield
