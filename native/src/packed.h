// Input rows of a matrix as its kernels take them.
#pragma once

#include <vector>

#include "matrix.h"

namespace draftproof {

// Scratch memory only ever grows: making it smaller would fill it anew.
template <class T>
void grow(std::vector<T>& scratch, std::size_t size) {
  if (scratch.size() < size) scratch.resize(size);
}

// Input rows of a matrix, transposed into tiles, quantised if the model asks for it and the matrix is.
class PackedRows {
 public:
  PackedRows(const Kernels& kernels, bool quantise) : kernels_(&kernels), quantise_(quantise) {}

  // Makes room for `rows` inputs of `w`.
  void resize(int rows, const Matrix& w);
  // Values [from, to), in whole groups, of the tile's rows, whose inputs are given.
  void pack(int tile, int from, int to, const float* const* inputs);
  int depth() const { return depth_; }
  int tiles() const { return tiles_; }
  int start(int tile) const { return static_cast<int>(static_cast<long>(tile) * rows_ / tiles_); }
  Tile tile(int t) const;

 private:
  int groups() const { return depth_ / kGroup; }

  const Kernels* kernels_;
  bool quantise_, integer_ = false, with_sums_ = false;
  int rows_ = 0, depth_ = 0, tiles_ = 1;
  std::vector<float> values_, sums_, scales_;
  std::vector<std::int8_t> quants_;
  std::vector<std::int32_t> offsets_;
};

}  // namespace draftproof
