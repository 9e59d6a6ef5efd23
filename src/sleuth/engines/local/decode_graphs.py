"""Decode steps as CUDA graphs: one launch for a whole step, by bucket of rows.

What is captured is `decode_step`, a function of buffers that stay where they are; a batch is copied into them, filled
up with rows that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sleuth.engines.local.attention import Batch, Kernels
from sleuth.engines.local.cache import PagedCache
from sleuth.engines.local.paged_attention import KernelAttention
from sleuth.engines.local.slots import DecodeState, SlotTable, with_sampled
from sleuth.engines.sampling import draw_rows, raised
from sleuth.kernels.card_pass import PAGE
from sleuth.kernels.decode_attention import PART, pack_parts
from sleuth.kernels.device import line_of, send

MOST_ROWS_OVER = 4
"""A graph decodes batches of down to a quarter of its rows: a step reads all weights, for however many rows, and so
not every size that requests pass through is captured."""
STEPS_BEFORE_CAPTURE = 4
"""Steps of a bucket before it is captured: a bucket that requests only pass through is not worth it."""


def bucket_of(rows: int) -> int:
    """The rows of the graph that is captured for so many: a power of two up to 32, then a multiple of 32."""
    return 1 << (rows - 1).bit_length() if rows <= 32 else -(-rows // 32) * 32


class DecodeBuffers:
    """A decode step's inputs and results, at fixed addresses, for R rows with up to n pages each.

    `tokens` (negative: sampled by the last step), `positions`, `pages` and `slots` are (R) int64, `settings` (2, R)
    temperatures and draws, `packed` int32 the rows' keys by `pack_parts`, `sampled` (2, R) tokens and
    log-probabilities. All inputs are in `memory`, which is sent at once as far as there are jobs.
    """

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.rows, self.table_pages = rows, pages
        most = rows * (2 + pages) + 3 * (1 + rows * -(-pages * PAGE // PART))
        self.memory = torch.zeros(6 * rows + -(-most // 2), dtype=torch.int64, device=device)
        self.tokens, self.positions, self.pages, self.slots = self.memory[: 4 * rows].view(4, rows).unbind()
        self.settings = self.memory[4 * rows : 6 * rows].view(torch.float64).view(2, rows)
        self.packed = self.memory[6 * rows :].view(torch.int32)[:most]
        self.sampled = torch.zeros(2, rows, dtype=torch.float64, device=device)

    def fill(self, table: SlotTable, slots: np.ndarray, decode_state: DecodeState, *, spare_page: int) -> None:
        """Takes the step of `slots` (B <= R). The other rows read and write the first token of `spare_page`."""
        count, positions, rows = len(slots), table.cached[slots], self.rows
        own = table.pages.pages[slots]
        pages = np.full((rows, self.table_pages), spare_page, dtype=np.int32)
        pages[:count] = own
        lengths = np.ones(rows, dtype=np.int64)
        lengths[:count] = positions + 1
        packed = pack_parts(pages, lengths, table.pages.page_size)
        memory = np.zeros(6 * rows + -(-len(packed) // 2), dtype=np.int64)
        numbers, settings = memory[: 4 * rows].reshape(4, rows), memory[4 * rows : 6 * rows].view(np.float64)
        numbers[2:, count:] = [[spare_page], [len(table.length)]]
        written = own[np.arange(count), positions // table.pages.page_size]
        numbers[:, :count] = table.tokens[slots, positions], positions, written, slots
        settings[:] = 1
        drawn = decode_state.draws[slots, table.length[slots]]
        settings.reshape(2, rows)[:, :count] = raised(decode_state.temperatures[slots]), drawn
        memory[6 * rows :].view(np.int32)[: len(packed)] = packed
        send(memory, self.memory[: len(memory)])


class BufferedBatch(Batch):
    """The batch of a decode step from buffers."""

    def __init__(self, buffers: DecodeBuffers, tokens: Tensor, cache: PagedCache) -> None:
        self.cache, self.count = cache, buffers.rows
        self.tokens, self.positions, self.pages = tokens, buffers.positions, buffers.pages
        self.cache_rows = self.chunk_outputs = self.prefill = self.output_indices = None
        self.longest = buffers.table_pages * cache.page_size
        self.decode = KernelAttention(buffers.packed, buffers.rows, buffers.table_pages)
        self._by_window = {}


def decode_step(forward: Callable[[Any], Tensor], cache: PagedCache, buffers: DecodeBuffers, by_slot: Tensor) -> None:
    """Reads the buffers, their tokens' keys and `by_slot`, and writes the keys of the tokens and `buffers.sampled`, by
    `forward`, which gives the logits of a batch: the same however often it is called. No host takes part."""
    tokens = with_sampled(buffers.tokens, buffers.slots, by_slot)
    batch = BufferedBatch(buffers, tokens, cache)
    buffers.sampled.copy_(draw_rows(forward(batch), *buffers.settings.unbind()))


def capture_graph(work: Callable[[], None], pool: Any) -> Callable[[], None]:
    """A function that does the same on the device as `work` does now, in one launch."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may use the card
        work()
    return graph.replay


class DecodeGraphs:
    """The captured decode steps of an engine, whose `forward` gives the logits of a batch. If one cannot be captured,
    or computes anything else than the step that was launched kernel by kernel, none is used from then on, which `log`
    is told."""

    def __init__(self, forward: Callable[[Any], Tensor], log: Callable[[str], None]) -> None:
        self.problem: str | None = None
        self._forward, self._log = forward, log
        self._pool: Any = None
        self._steps: dict[int, int] = {}  # of each bucket, launched kernel by kernel
        self._replays: dict[int, tuple[DecodeBuffers, Callable[[], None]]] = {}

    @property
    def captured(self) -> int:
        """The number of graphs."""
        return len(self._replays)

    def is_refused(self, kernels: Kernels) -> bool:
        """Whether no graph can be used, as without our kernel for attention, which is logged once."""
        if self.problem is None and not kernels.decoding:
            self._refuse("keys are padded for attention, as many as the longest text has")
        return self.problem is not None

    def decode(
        self, table: SlotTable, slots: np.ndarray, decode_state: DecodeState, cache: PagedCache, by_slot: Tensor
    ) -> Tensor | None:
        """The tokens and log-probabilities (2, B) of a step of `slots` (B); None if it is not captured."""
        rows = self._rows_for(len(slots))
        if rows not in self._replays:
            self._steps[rows] = self._steps.get(rows, 0) + 1
            if self._steps[rows] <= STEPS_BEFORE_CAPTURE:
                return None
        buffers, replay = self._replays.get(rows) or (
            DecodeBuffers(rows, table.pages.pages.shape[1], by_slot.device),
            None,
        )
        buffers.fill(table, slots, decode_state, spare_page=cache.pages - 1)
        if replay is not None:
            replay()
        else:
            self._capture(buffers, partial(decode_step, self._forward, cache, buffers, by_slot))
        return buffers.sampled[:, : len(slots)].clone()

    def _rows_for(self, count: int) -> int:
        """The rows of the smallest graph for `count` rows, if there is one that is not too large."""
        fitting = (rows for rows in self._replays if count <= rows <= MOST_ROWS_OVER * count)
        return min(fitting, default=bucket_of(count))

    def clear(self) -> None:
        """Forgets all graphs: the weights or the cache that they read are gone."""
        self._steps.clear()
        self._replays.clear()
        self._pool = None

    def _capture(self, buffers: DecodeBuffers, work: Callable[[], None]) -> None:
        """Does the step, and captures it for later ones."""
        work()
        expected = buffers.sampled.clone()
        try:
            if self._pool is None and expected.device.type == "cuda":
                self._pool = torch.cuda.graph_pool_handle()
            replay = capture_graph(work, self._pool)
            buffers.sampled.fill_(-1)
            replay()
            same = torch.equal(buffers.sampled[0], expected[0])
        except RuntimeError as error:  # whatever a model, a library or a driver does not allow in a graph
            self._refuse(line_of(error))
        else:
            if same:
                self._replays[buffers.rows] = buffers, replay
            else:
                self._refuse("the captured step sampled other tokens")
        buffers.sampled.copy_(expected)

    def _refuse(self, problem: str) -> None:
        self.clear()
        self.problem = problem
        self._log(f"the engine launches decode steps kernel by kernel, without CUDA graphs: {problem}")
