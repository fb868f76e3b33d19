// Kernels on single rows: norms, gates, softmax, the weighted sum of values, quantisation. A row's result depends on
// that row.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace draftproof::DRAFTPROOF_ISA {

inline void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  V16 squares = splat(0.0f);
  for (int i = 0; i < n; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  const V16 scale = splat(1.0f / __builtin_sqrtf(lane_sum(squares) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
}

inline void dots(const float* x, const float* rows, int count, int n, float* out) {
  for (int r = 0; r < count; ++r, rows += n) {
    V16 sum = splat(0.0f);
    for (int i = 0; i < n; i += kLanes) sum = fma(load(x + i), load(rows + i), sum);
    out[r] = lane_sum(sum);
  }
}

inline V16 sigmoid(V16 x) { return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x)); }

// GELU in its tanh form is x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
inline V16 gelu_tanh(V16 x) {
  const V16 inner = fma(x * x * x, splat(0.044715f), x);
  return x * sigmoid(inner * splat(1.5957691216057308f));
}

inline void gate(Activation activation, const float* gate, const float* up, int n, float* out) {
  for (int i = 0; i < n; i += kLanes) {
    const V16 g = load(gate + i);
    const V16 opened = activation == Activation::silu ? g * sigmoid(g) : gelu_tanh(g);
    store(out + i, opened * load(up + i));
  }
}

// Pairs are (i, i + half), as in the checkpoints of Hugging Face.
inline void rotate(float* head, const float* cosines, const float* sines, int half, float scale) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const V16 a = load(head + i), b = load(head + half + i), c = load(cosines + i), s = load(sines + i);
    store(head + i, (a * c - b * s) * splat(scale));
    store(head + half + i, (b * c + a * s) * splat(scale));
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = (a * cosines[i] - b * sines[i]) * scale;
    head[half + i] = (b * cosines[i] + a * sines[i]) * scale;
  }
}

inline void fill(float* scores, int from, int to, float value) {
  for (int i = from; i < to; ++i) scores[i] = value;
}

// Blocks are aligned to absolute positions, so a position always meets the same lane.
inline float softmax(float* scores, int first, int last, float* top) {
  const int begin = first / kLanes * kLanes, end = (last + kLanes - 1) / kLanes * kLanes;
  fill(scores, begin, first, -3e38f), fill(scores, last, end, -3e38f);
  V16 best = splat(-3e38f);
  for (int i = begin; i < end; i += kLanes) best = max(best, load(scores + i));
  *top = lane_max(best);
  const V16 highest = splat(*top);
  for (int i = begin; i < end; i += kLanes) store(scores + i, exp(load(scores + i) - highest));
  fill(scores, begin, first, 0.0f), fill(scores, last, end, 0.0f);
  V16 sum = splat(0.0f);
  for (int i = begin; i < end; i += kLanes) sum = sum + load(scores + i);
  return lane_sum(sum);
}

// Two softmaxes over different keys become one: both are brought down from the higher of their tops (Milakov and
// Gimelshein 1805.02867, section 3.1).
inline void fold(float* total, const float* share, int width) {
  if (share[width + 1] == 0.0f) return;
  if (total[width + 1] == 0.0f) {
    for (int i = 0; i < width + kLanes; i += kLanes) store(total + i, load(share + i));
    return;
  }
  const float top = total[width] > share[width] ? total[width] : share[width];
  const V16 mine = exp(splat(total[width] - top)), other = exp(splat(share[width] - top));
  for (int i = 0; i < width + kLanes; i += kLanes)
    store(total + i, load(total + i) * mine + load(share + i) * other);
  total[width] = top;
}

constexpr int kSoon = 8;  // rows of values fetched in advance

template <int R, int P>
void mix_slice(const float* weights, int stride, const Values& values, int column, float* out, int out_stride) {
  V16 sums[R][P];
  each<R, P>([&](int r, int p) { sums[r][p] = load(out + r * out_stride + p * kLanes); });
  const float* value = values.data + column;
  const float* next = values.next + column;
  for (int j = 0; j < values.count; ++j, value += values.width, next += values.width) {
    V16 v[P];
    prefetch(value + kSoon * values.width);
    for (int p = 0; p < P; ++p) prefetch_far(next + p * kLanes);  // GCC drops a lambda that does nothing else
    each<P>([&](int p) { v[p] = load(value + p * kLanes); });
    each<R>([&](int r) {
      const V16 w = splat(weights[static_cast<std::size_t>(r) * stride + j]);
      each<P>([&](int p) { sums[r][p] = fma(w, v[p], sums[r][p]); });
    });
  }
  each<R, P>([&](int r, int p) { store(out + r * out_stride + p * kLanes, sums[r][p]); });
}

template <int R>
void mix_rows(const float* weights, int stride, const Values& values, float* out, int out_stride) {
  constexpr int together = R * 4 <= kAccumulators ? 4 : R * 2 <= kAccumulators ? 2 : 1;
  int d = 0;
  for (; d + together * kLanes <= values.width; d += together * kLanes)
    mix_slice<R, together>(weights, stride, values, d, out + d, out_stride);
  for (; d < values.width; d += kLanes) mix_slice<R, 1>(weights, stride, values, d, out + d, out_stride);
}

inline void mix(const float* weights, int stride, int rows, const Values& values, float* out, int out_stride) {
  constexpr int most = 6;
  while (rows > 0) {
    const int now = rows < most ? rows : most;
    switch (now) {
      case 1: mix_rows<1>(weights, stride, values, out, out_stride); break;
      case 2: mix_rows<2>(weights, stride, values, out, out_stride); break;
      case 3: mix_rows<3>(weights, stride, values, out, out_stride); break;
      case 4: mix_rows<4>(weights, stride, values, out, out_stride); break;
      case 5: mix_rows<5>(weights, stride, values, out, out_stride); break;
      default: mix_rows<6>(weights, stride, values, out, out_stride); break;
    }
    rows -= now, weights += static_cast<std::size_t>(now) * stride, out += static_cast<std::size_t>(now) * out_stride;
  }
}

// Values [from, to) of R inputs, transposed: out[(k - from) * R + r].
template <int R>
void transpose_rows(const float* const* inputs, int from, int to, float* out) {
  const float* in[R];
  each<R>([&](int r) { in[r] = inputs[r]; });
  for (int k = from; k < to; ++k, out += R) each<R>([&](int r) { out[r] = in[r][k]; });
}

template <int R = kMaxRows>
void transpose(const float* const* inputs, int rows, int from, int to, float* out) {
  if (rows == R) return transpose_rows<R>(inputs, from, to, out);
  if constexpr (R > 1) transpose<R - 1>(inputs, rows, from, to, out);
}

inline void group_sums(const float* x, int depth, int rows, int r, float* sums) {
  for (int g = 0; g < depth / kGroup; ++g)
    sums[g * rows + r] = lane_sum(load(x + g * kGroup) + load(x + g * kGroup + kLanes));
}

inline float largest_magnitude(V16 a, V16 b) {
  const V16 zero = splat(0.0f);
  return lane_max(max(max(a, zero - a), max(b, zero - b)));
}

// Symmetric quantisation of 32 values to -127..127 with their own scale; rounding to nearest even by the magic
// constant.
inline void quantise_group(const float* x, std::int32_t (&q)[kGroup], float& scale) {
  const V16 a = load(x), b = load(x + kLanes), magic = splat(12582912.0f);
  const float largest = largest_magnitude(a, b);
  scale = largest > 1e-30f ? largest / 127.0f : 0.0f;  // below, 1 / scale would overflow
  const V16 inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f);
  float rounded[kGroup];
  store(rounded, (a * inverse + magic) - magic), store(rounded + kLanes, (b * inverse + magic) - magic);
  for (int i = 0; i < kGroup; ++i) q[i] = static_cast<std::int32_t>(rounded[i]);
}

inline void quantise(const float* x, int depth, int rows, int r, std::int8_t* quants, float* scales,
                     std::int32_t* offsets, float* sums) {
  for (int g = 0; g < depth / kGroup; ++g) {
    std::int32_t q[kGroup], sum = 0;
    float scale;
    quantise_group(x + g * kGroup, q, scale);
    std::int8_t bytes[kGroup];
    for (int i = 0; i < kGroup; ++i) sum += q[i];
    for (int i = 0; i < kGroup; ++i) bytes[i] = static_cast<std::int8_t>(q[i]);
    std::int8_t* out = quants + (g * kGroup * rows + r * 4);
    for (int i = 0; i < kGroup; i += 4) __builtin_memcpy(out + i * rows, bytes + i, 4);
    scales[g * rows + r] = scale;
    offsets[g * rows + r] = -128 * sum;
    sums[g * rows + r] = scale * static_cast<float>(sum);
  }
}

}  // namespace draftproof::DRAFTPROOF_ISA
