"""Pages of the KV cache for tests: scattered, and NaN wherever nothing was appended."""

import numpy as np

import cuda_harness as H
import kv_types as K

PAGE = 32


def rounded(x, dtype):
    """Return x as stored in the cache: float16, float32, or bf16 as float32 with the lower half
    clear"""
    if dtype == "f16":
        return np.clip(x, -65504, 65504).astype(np.float16)
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "f32":
        return x
    u = x.view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).view(np.float32)


class Pool:
    """Pages of one layer for sequences of `lens` positions; k_width and v_width: elements per
    position, over all heads"""

    def __init__(self, lens, k_width, v_width, dtype, rng):
        self.dtype, self.k_width, self.v_width = dtype, k_width, v_width
        self.item = 4 if dtype == "f32" else 2
        n_pages = [-(-n // PAGE) for n in lens]
        total = sum(n_pages)
        order = rng.permutation(total + 3)[:total]
        self.table = np.full((len(lens), max(n_pages)), 1 << 29, np.int64)
        at = 0
        for i, n in enumerate(n_pages):
            self.table[i, :n] = order[at : at + n]
            at += n
        self.page_bytes = PAGE * (k_width + v_width) * self.item
        self.pages = np.full((total + 3, self.page_bytes), 0xFF, np.uint8)

    def beyond(self, n_bytes):
        """Return the block table, and the pages as an argument in which n_bytes precede them"""
        first = -(-n_bytes // self.page_bytes)
        return H.far(self.pages, first * self.page_bytes), np.where(
            self.table < 1 << 29, self.table + first, self.table
        )

    def places(self, seq, pos, heads):
        """Return (first byte, bytes) of the data of position pos in the pages"""
        page = int(self.table[seq, pos // PAGE]) * self.page_bytes
        for base, width in ((0, self.k_width), (PAGE * self.k_width, self.v_width)):
            n = width // heads * self.item
            yield from (
                (page + base * self.item + h * PAGE * n + pos % PAGE * n, n)
                for h in range(heads if n else 0)
            )

    def fill(self, seq, k, v, first=0):
        """Write k and v: [positions, heads, dim], rounded"""
        for x, base, width in ((k, 0, self.k_width), (v, PAGE * self.k_width, self.v_width)):
            n, heads, dim = x.shape
            assert heads * dim == width
            raw = np.ascontiguousarray(x)
            if self.dtype == "bf16":
                raw = (raw.view(np.uint32) >> 16).astype(np.uint16)
            raw = raw.view(np.uint8).reshape(n, heads, dim * self.item)
            for j in range(n):
                page = self.pages[
                    self.table[seq, (first + j) // PAGE],
                    base * self.item : (base + PAGE * width) * self.item,
                ]
                page.reshape(heads, PAGE, dim * self.item)[:, (first + j) % PAGE] = raw[j]

    def _parts(self, seq, pos):
        """Return the bytes of K and V of position pos as views [heads, dim bytes]"""
        for base, width in ((0, self.k_width), (PAGE * self.k_width, self.v_width)):
            yield (
                self.pages[
                    self.table[seq, pos // PAGE],
                    base * self.item : (base + PAGE * width) * self.item,
                ],
                pos % PAGE,
                width,
            )

    def read(self, seq, pos, n, k_shape, v_shape):
        """Return K and V of n positions as float64: [n, heads, dim]"""
        out = []
        for which, (heads, dim) in enumerate((k_shape, v_shape)):
            rows = []
            for j in range(n):
                part, at, _ = list(self._parts(seq, pos + j))[which]
                raw = np.ascontiguousarray(part.reshape(heads, PAGE, dim * self.item)[:, at])
                if self.dtype == "bf16":
                    rows.append(
                        (raw.view(np.uint16).astype(np.uint32) << 16)
                        .view(np.float32)
                        .reshape(heads, dim)
                    )
                else:
                    rows.append(
                        raw.view(np.float16 if self.dtype == "f16" else np.float32).reshape(
                            heads, dim
                        )
                    )
            out.append(np.array(rows, np.float64))
        return out

    def write(self, seq, pos, pages, n, heads):
        """Copies positions [pos, pos + n) from `pages`."""
        for j in range(n):
            page = self.table[seq, (pos + j) // PAGE]
            for base, width in ((0, self.k_width), (PAGE * self.k_width, self.v_width)):
                if width == 0:
                    continue
                part = slice(base * self.item, (base + PAGE * width) * self.item)
                to, by = (
                    self.pages[page, part].reshape(heads, PAGE, -1),
                    pages[page, part].reshape(heads, PAGE, -1),
                )
                to[:, (pos + j) % PAGE] = by[:, (pos + j) % PAGE]


class Codes(Pool):
    """Pages of latents of a quantised type (tests/kv_types.py). fill takes unrounded rows."""

    def __init__(self, lens, width, kv, rng):
        super().__init__(lens, width, 0, "f32", rng)
        self.dtype, self.width = kv, width
        self.page_bytes = PAGE * K.row_bytes(kv, width)
        self.pages = np.full((len(self.pages), self.page_bytes), 0xFF, np.uint8)

    def places(self, seq, pos, heads):
        page = int(self.table[seq, pos // PAGE]) * self.page_bytes
        return [(page + at, n) for at, n in K.spans(self.dtype, self.width, pos % PAGE)]

    def fill(self, seq, k, v, first=0):
        flat = self.pages.reshape(-1)
        for j, row in enumerate(np.asarray(k, np.float32)):
            rows = K.encode(self.dtype, np.repeat(row[None], PAGE, 0))
            plane = K.plane(self.dtype, rows, self.width, False).reshape(-1)
            base = int(self.table[seq, (first + j) // PAGE]) * self.page_bytes
            for at, n in self.places(seq, first + j, 1):
                flat[at : at + n] = plane[at - base : at - base + n]
