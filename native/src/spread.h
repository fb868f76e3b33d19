// How the work of a phase is cut into items for the pool.
#pragma once

#include <algorithm>

#include "forward.h"

namespace draftproof {

// A few rows are done faster by the caller alone than by waking others.
template <class Work>
void spread_rows(Pool& pool, int rows, Work&& work) {
  if (rows < 4) {
    for (int row = 0; row < rows; ++row) work(row, 0);
  } else {
    pool.run(rows, work);
  }
}

// store(row, first output, count, values) receives two panels at a time: `count` of the outputs of packed row `row`.
template <class Store>
void multiply(Pool& pool, const Kernels& kernels, const Matrix& w, const PackedRows& x, Store&& store) {
  const Panels panels = w.panels();
  const int pairs = (w.panel_count() + 1) / 2;
  const int together = std::max(1, pairs / (32 * pool.threads()));  // pairs an item
  const auto one_pair = [&](int pair) {
    alignas(64) float out[16 * 2 * kPanel];
    const int panel = 2 * pair, count = std::min(2, w.panel_count() - panel), width = count * kPanel;
    const int outputs = std::min(width, w.outputs() - panel * kPanel);
    for (int t = 0; t < x.tiles(); ++t) {
      const Tile tile = x.tile(t);
      kernels.multiply(panels, panel, count, tile, out, width);
      for (int r = 0; r < tile.rows; ++r) store(x.start(t) + r, panel * kPanel, outputs, out + r * width);
    }
  };
  pool.run((pairs + together - 1) / together, [&](int item, int) {
    for (int pair = item * together; pair < std::min(pairs, (item + 1) * together); ++pair) one_pair(pair);
  });
}

}  // namespace draftproof
