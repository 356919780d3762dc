"""Worlds whose producers write half of their messages into the inbox, in packs, as ``schedule_many`` does.

A pack has a new message and up to two that were sent before, since its producer had no answer: in the wheel queue, in
another pack or in the store, and perhaps twice in one pack.
"""

from __future__ import annotations

import copy
import random

from celery_wheel.store.message_pack import WHOLE, pack
from celery_wheel.store.model import MESSAGES, Message
from tests.simulation.happenings import Happenings
from tests.simulation.model_store import ModelStore
from tests.simulation.rabbit_world import RabbitWorld
from tests.simulation.world import World


class _Packs(Happenings):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._pack_rng = random.Random(seed + 5_000_003)

    def deliver(self, message: Message) -> None:
        # A task that is sent anew by the inbox, behind the request that names it, is not cancelled.
        if self._pack_rng.random() < 0.5 or self.asking.names(message.task_id):
            super().deliver(message)
            return
        sent = [id_ for id_, one in self.sent.items() if not self.asking.names(one.task_id)]
        ids = [message.envelope_id, *(self._pack_rng.choices(sent, k=self._pack_rng.randrange(3)) if sent else ())]
        self._pack_rng.shuffle(ids)
        ModelStore(self.disk).put_inbox(0, [(MESSAGES, pack([(WHOLE, [id_]) for id_ in ids]))])
        self.counts["packed"] += 1
        self.counts["sent again in a pack"] += len(ids) > 1

    def decode(self, raw: bytes) -> Message:
        message = self.sent.get(raw.decode())
        return super().decode(raw) if message is None else copy.copy(message)


class PackWorld(_Packs, World):
    pass


class RabbitPackWorld(_Packs, RabbitWorld):
    pass
