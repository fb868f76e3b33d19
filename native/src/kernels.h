// The table of kernels, one a set of instructions. Every kernel computes each output from its own inputs in one fixed
// order, whatever the number of rows, panels or threads: that is what makes the backend invariant.
#pragma once

#include <cstddef>
#include <cstdint>

namespace draftproof {

constexpr int kPanel = 16;  // columns of a weight panel, keys of a cache panel, lanes of a vector
constexpr int kGroup = 32;  // activations quantised together, and weights that share a scale where nothing else is said
constexpr std::ptrdiff_t kAhead = 8192;  // bytes that memory is ahead of arithmetic in weights: less leaves gaps

enum class Format : int { f32, bf16, int8, int8_groups, int4 };
enum class Activation : int { silu, gelu_tanh };

// Weights of `kPanel` outputs each, panel after panel. Inside a panel:
//   f32        [depth][16]
//   bf16       [depth/2][16][2]; with `pairs` these lines of panels 2i and 2i + 1 alternate, a last one may be alone
//   int8       scales f32 [16], then [depth/4][16][4] signed bytes
//   int8_groups  per group of 32: scales f16 [16], then [8][16][4] signed bytes
//   int4       per group of 32, 64 or 128: scales f16 [16], minima f16 [16], [group/8][16] words of eight nibbles;
//              nibble 2b of a word is k + b and nibble 2b + 1 is k + 4 + b, so that masking a word leaves four
//              consecutive k as bytes
struct Panels {
  Format format;
  const std::uint8_t* data;
  std::size_t stride;  // bytes from one panel to the next
  int depth;
  int group;   // of int4
  bool pairs;  // of bf16
  std::ptrdiff_t ahead;  // bytes: what f32, bf16 and int8 fetch while they read a line
};

// Rows that a mix takes, and memory of the same size that it fetches meanwhile.
struct Values {
  const float* data;  // [count][width]
  int count, width;
  const float* next;
};

// A tile of input rows, transposed so that a kernel walks one pointer: values [depth][rows].
// With quantised activations: quants [depth/4][rows][4], scales and offsets [depth/32][rows]. `sums` [depth/32][rows]
// holds the sum of each group (of the values, or scale * sum of quants), which the minima of int4 weights multiply.
struct Tile {
  int rows;
  const float* values;
  const float* sums;
  const std::int8_t* quants;
  const float* scales;
  const std::int32_t* offsets;  // -128 * sum of quants: int8 weights enter the dot product shifted by 128
};

struct Kernels {
  const char* name;
  int max_rows;  // rows of the largest tile
  bool pairs;    // two panels of bf16 are best stored as one: the largest tile fits the registers twice

  // out[r * stride + c] = sum over k of x[k][r] * w[k][c], for `count` panels from `panel` on.
  void (*multiply)(const Panels& weights, int panel, int count, const Tile& x, float* out, int out_stride);
  // out[(k - from) * rows + r] = inputs[r][k] for k in [from, to): a tile's values.
  void (*transpose)(const float* const* inputs, int rows, int from, int to, float* out);
  // quants[k/4][rows][4], scales, offsets and sums of row r from x[depth].
  void (*quantise)(const float* x, int depth, int rows, int r, std::int8_t* quants, float* scales,
                   std::int32_t* offsets, float* sums);
  // sums[g][rows] of row r from x[depth].
  void (*group_sums)(const float* x, int depth, int rows, int r, float* sums);
  // out = x / sqrt(mean(x^2) + eps) * weight; n is a multiple of 16.
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);
  // out[r] = sum of x * rows[r]; n is a multiple of 16.
  void (*dots)(const float* x, const float* rows, int count, int n, float* out);
  // out = activation(gate) * up; n is a multiple of 16.
  void (*gate)(Activation activation, const float* gate, const float* up, int n, float* out);
  // Rotary positions of a head in place, times `scale`.
  void (*rotate)(float* head, const float* cosines, const float* sines, int half, float scale);
  // scores[first, last) become exp(score - max); returns their sum and, in `top`, the maximum. The buffer reaches up to
  // the next multiple of 16, its lanes outside the range are overwritten with zero.
  float (*softmax)(float* scores, int first, int last, float* top);
  // out[r * out_stride + d] += sum over j of weights[r * stride + j] * values[j][d], j ascending; the width is a
  // multiple of 16.
  void (*mix)(const float* weights, int stride, int rows, const Values& values, float* out, int out_stride);
  // What a query took of some keys, its share: [width values][top, sum, 14 unused], values and sum by softmax's terms.
  // Adds that of further keys; a share whose sum is zero is empty.
  void (*fold)(float* total, const float* share, int width);
  // Rows over the vocabulary (vocabulary.h): softmax of scores / temperature, NaN throughout for a row that has none;
  // the first token of the largest score and its part of a softmax, -1 for a row that has none; out = (scale * p - q)+ with its mass; that mass and the sum of min(p, q); the token at a quantile, -1 for a row
  // without mass.
  void (*probabilities)(const float* scores, int n, float inverse_temperature, float* out);
  int (*best)(const float* scores, int n, float* share);
  double (*residual)(const float* p, const float* q, float scale, int n, float* out);
  void (*compare)(const float* p, const float* q, float scale, int n, double* mass, double* overlap);
  int (*draw)(const float* row, int n, double u);
  // top-p and min-p in place (filters.h); `room` has space for n + 16 floats.
  void (*filter)(float* row, int n, double top_p, float min_p, float* room);
  // The winner of the exponential race of a position (race.h), -1 for a row without mass or with NaN. `gaps` is zero at
  // first and kept for other rows of the position.
  int (*race)(const float* row, float* gaps, int n, std::uint64_t seed, std::uint64_t position);
};

const Kernels& kernels(const char* isa);  // "auto" or a name of `kernel_names`; throws std::invalid_argument
const char* const* kernel_names();        // those this machine can run, best first, then nullptr

namespace avx512 {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
namespace neon {
extern const Kernels table;
}
namespace generic {
extern const Kernels table;
}

}  // namespace draftproof
