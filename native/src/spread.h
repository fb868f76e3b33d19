// How the work of a phase is cut into items for the pool.
#pragma once

#include <algorithm>

#include "packed.h"
#include "pool.h"

namespace draftproof {

// So little is done faster by the caller alone than by sending lines of memory to other cores and back.
inline bool few(int rows, int width) { return rows * width <= 1 << 14; }

// work(item, worker) for all items, by the caller alone or shared out.
template <class Work>
void spread(Pool& pool, bool alone, int items, Work&& work) {
  if (!alone) return pool.run(items, work);
  for (int item = 0; item < items; ++item) work(item, 0);
}

template <class Work>
void spread_rows(Pool& pool, int rows, int width, Work&& work) {
  spread(pool, few(rows, width), rows, work);
}

// Every row's input goes to its tile: by slices of the depth, since a line of a tile holds values of all its rows, and
// threads that took a row each would write the same lines.
inline void pack_rows(Pool& pool, PackedRows& packed, const float* const* inputs) {
  constexpr int slice = 6 * kGroup;
  const int depth = packed.depth(), slices = (depth + slice - 1) / slice;
  pool.run(packed.tiles() * slices, [&](int item, int) {
    const int tile = item / slices, from = item % slices * slice;
    packed.pack(tile, from, std::min(depth, from + slice), inputs + packed.start(tile));
  });
}

// inputs(worker) -> the packed rows that this thread reads, alike for all. store(row, first output, count, values)
// receives two panels at a time: `count` of the outputs of packed row `row`.
template <class Rows, class Store>
void multiply(Pool& pool, const Kernels& kernels, const Matrix& w, Rows&& inputs, Store&& store) {
  const Panels panels = w.panels();
  const int pairs = (w.panel_count() + 1) / 2;
  const int together = std::max(1, pairs / (32 * pool.threads()));  // pairs an item
  const auto one_pair = [&](int pair, const PackedRows& x) {
    alignas(64) float out[16 * 2 * kPanel];
    const int panel = 2 * pair, count = std::min(2, w.panel_count() - panel), width = count * kPanel;
    const int outputs = std::min(width, w.outputs() - panel * kPanel);
    for (int t = 0; t < x.tiles(); ++t) {
      const Tile tile = x.tile(t);
      kernels.multiply(panels, panel, count, tile, out, width);
      for (int r = 0; r < tile.rows; ++r) store(x.start(t) + r, panel * kPanel, outputs, out + r * width);
    }
  };
  pool.run((pairs + together - 1) / together, [&](int item, int worker) {
    const PackedRows& x = inputs(worker);
    for (int pair = item * together; pair < std::min(pairs, (item + 1) * together); ++pair) one_pair(pair, x);
  });
}

}  // namespace draftproof
