"""Cuts what is not common with the master off the closed store of a member, or empties it: log, epochs, positions that cover it."""

from __future__ import annotations

import asyncio
import logging

from ariane.broker.config.broker_config import BrokerConfig, to_store_config
from ariane.store.disk.files import Disk
from ariane.store.log.epochs import EpochHistory, epoch_at
from ariane.store.recovery.log_cut import cut_log
from ariane.store.recovery.log_reset import empty_log

log = logging.getLogger("ariane.broker.failover.member_cut")


async def cut_member(config: BrokerConfig, disk: Disk, epochs: EpochHistory, common: int, end: int) -> None:
    """Cut the log, which ends at `end`, at `common`.

    Raises:
        StoreError: no record begins there, or the disk fails.
    """
    # Records without an epoch, such as those of a restored backup, may be those of the master: nothing shows it.
    is_known = epoch_at(epochs.epochs, common) is not None
    reason = "no later master has them" if is_known else "their epochs are unknown, and they are copied from the master"
    path = await asyncio.to_thread(cut_log, to_store_config(config), disk, common, end)
    epochs.cut(common)
    _forget_delays(config, disk)
    log.warning(
        "Cut %d bytes off the log at %d: %s. They are readable: ariane store cat %s",
        end - common,
        common,
        reason,
        path,
        extra={"notice": True},
    )


async def empty_member(config: BrokerConfig, disk: Disk, epochs: EpochHistory) -> None:
    """Put the log aside as a whole. The member has another incarnation since: the set does not rely on this log any more.

    Raises:
        StoreError: the disk fails.
    """
    count = await asyncio.to_thread(empty_log, to_store_config(config), disk)
    epochs.cut(0)
    _forget_delays(config, disk)
    log.warning(
        "Moved the %d files of the log to %s/cut, and begin with an empty log. They are readable: ariane store cat FILE",
        count,
        config.store_path_root_dir,
        extra={"notice": True},
    )


def _forget_delays(config: BrokerConfig, disk: Disk) -> None:
    # Positions of delay levels may cover deliveries that were cut off; they are in the log, too.
    delays = f"{config.config_dir}/delayOffset.json"
    if disk.size(delays) is not None:
        disk.remove(delays)
