// Matrix kernels: a register tile of R rows and sixteen outputs, summed over the depth in ascending order.
#pragma once

#include "formats.h"

namespace draftproof::DRAFTPROOF_ISA {

// One panel and a tile of R rows; sum of row r goes to out + r * out_stride.
struct Call {
  const std::uint8_t* panel;
  int depth;
  const Tile& x;
  float* out;
  int out_stride;
  std::ptrdiff_t ahead;

  template <int M>
  Int4Group<M> group(int g) const {
    return {panel + static_cast<std::size_t>(g) * Int4Group<M>::bytes};
  }
};

template <class T, int R>
struct Sums {
  T at[R];
};

template <int R>
inline Sums<V16, R> zeros() {
  Sums<V16, R> sums;
  each<R>([&](int r) { sums.at[r] = splat(0.0f); });
  return sums;
}

// sums += x times w for one k; x are the values of the R rows there.
template <int R>
inline void add_products(Sums<V16, R>& sums, const float* x, V16 w) {
  each<R>([&](int r) { sums.at[r] = fma(splat(x[r]), w, sums.at[r]); });
}

// f32, bf16 and int8 weights with float32 activations. Even and odd k of int8 are summed apart where registers allow it
// for every number of rows: a line of four k would wait for four products of one sum.
template <class W, int R>
void dense(const Call& c) {
  constexpr int chains = W::step == 4 && kPairRows == kMaxRows ? 2 : 1;
  Sums<V16, R> sums[chains];
  each<chains>([&](int i) { sums[i] = zeros<R>(); });
  const float* x = c.x.values;
  for (int k = 0; k < c.depth; k += W::step, x += W::step * R) {
    const typename W::Block block = W::block(c.panel, k, c.ahead);
    each<W::step>([&](int j) { add_products<R>(sums[j % chains], x + j * R, W::weight(block, j)); });
  }
  each<R>([&](int r) {
    const V16 sum = chains == 2 ? sums[0].at[r] + sums[chains - 1].at[r] : sums[0].at[r];
    store(c.out + r * c.out_stride, W::finish(c.panel, sum));
  });
}

// Rows [from, from + count) of R, times a pair of bf16 panels, whose lines of sixteen outputs alternate.
template <int R, int from, int count>
void bf16_rows(const Call& c) {
  Sums<V16, count> sums[2] = {zeros<count>(), zeros<count>()};
  const float* x = c.x.values + from;
  for (int k = 0; k < c.depth; k += 2, x += 2 * R) {
    I16 lines[2];
    each<2>([&](int h) { lines[h] = Bf16::block(c.panel, 2 * (k + h), c.ahead); });
    each<2>([&](int j) {
      const V16 w[2] = {Bf16::weight(lines[0], j), Bf16::weight(lines[1], j)};
      each<count>([&](int r) {
        const V16 value = splat(x[j * R + r]);
        each<2>([&](int h) { sums[h].at[r] = fma(value, w[h], sums[h].at[r]); });
      });
    });
  }
  each<2, count>([&](int h, int r) { store(c.out + (from + r) * c.out_stride + h * kPanel, sums[h].at[r]); });
}

// As many rows at once as the registers hold.
template <int R, int from = 0>
void bf16_pair(const Call& pair) {
  constexpr int count = R - from < kPairRows ? R - from : kPairRows;
  bf16_rows<R, from, count>(pair);
  if constexpr (from + count < R) bf16_pair<R, from + count>(pair);
}

// total += minimum * (sum of x over the group of M * 32)
template <int R, int M>
inline void add_minima(Sums<V16, R>& total, Int4Group<M> w, const float* x_sums) {
  const V16 minima = w.minima();
  each<R>([&](int r) {
    float sum = x_sums[r];
    for (int s = 1; s < M; ++s) sum += x_sums[s * R + r];
    total.at[r] = fma(minima, splat(sum), total.at[r]);
  });
}

// int4 weights with float32 activations.
template <int R, int M>
void int4_dense(const Call& c) {
  Sums<V16, R> total = zeros<R>();
  const float* x = c.x.values;
  for (int g = 0; g < c.depth / Int4Group<M>::size; ++g) {
    const Int4Group<M> w = c.group<M>(g);
    Sums<V16, R> group = zeros<R>();
    for (int k = 0; k < w.size; k += 8, x += 8 * R) {
      const I16 words = w.words(k);
      each<8>([&](int j) { add_products<R>(group, x + j * R, low_nibble(shift_right(words, nibble_shift(j)))); });
    }
    const V16 scales = w.scales();
    each<R>([&](int r) { total.at[r] = fma(scales, group.at[r], total.at[r]); });
    add_minima<R, M>(total, w, c.x.sums + static_cast<std::size_t>(g) * M * R);
  }
  each<R>([&](int r) { store(c.out + r * c.out_stride, total.at[r]); });
}

inline I16 four_bytes(const std::int8_t* p) {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return splat_i32(word);
}

// int8 weights with quantised activations: exact integer sums a group, added up in float32.
template <int R>
void int8_integer(const Call& c) {
  Sums<V16, R> total = zeros<R>();
  const std::int8_t* q = c.x.quants;
  const I16 shift = splat_i32(static_cast<std::int32_t>(0x80808080u));
  for (int g = 0; g < c.depth / kGroup; ++g) {
    Sums<I16, R> dots;
    each<R>([&](int r) { dots.at[r] = splat_i32(c.x.offsets[g * R + r]); });
    for (int k = 0; k < kGroup; k += 4, q += 4 * R) {
      const I16 w = Int8::block(c.panel, g * kGroup + k, c.ahead) ^ shift;
      each<R>([&](int r) { dots.at[r] = dot4(dots.at[r], w, four_bytes(q + 4 * r)); });
    }
    each<R>([&](int r) { total.at[r] = fma(to_float(dots.at[r]), splat(c.x.scales[g * R + r]), total.at[r]); });
  }
  each<R>([&](int r) { store(c.out + r * c.out_stride, Int8::finish(c.panel, total.at[r])); });
}

// Dot products of the 32 weights from k on with the R rows' quants [kGroup / 4][R][4].
template <int R, int M>
inline Sums<I16, R> int4_dots(Int4Group<M> w, int from, const std::int8_t* q) {
  Sums<I16, R> dots;
  each<R>([&](int r) { dots.at[r] = splat_i32(0); });
  const I16 mask = splat_i32(0x0f0f0f0f);
  for (int k = from; k < from + kGroup; k += 8, q += 8 * R) {
    const I16 words = w.words(k), low = words & mask, high = shift_right(words, 4) & mask;
    each<R>([&](int r) {
      dots.at[r] = dot4(dot4(dots.at[r], low, four_bytes(q + 4 * r)), high, four_bytes(q + 4 * (R + r)));
    });
  }
  return dots;
}

// int4 weights with quantised activations, whose groups have 32 whatever those of the weights.
template <int R, int M>
void int4_integer(const Call& c) {
  Sums<V16, R> total = zeros<R>();
  for (int g = 0; g < c.depth / Int4Group<M>::size; ++g) {
    const Int4Group<M> w = c.group<M>(g);
    const V16 scales = w.scales();
    for (int s = g * M; s < (g + 1) * M; ++s) {
      const std::int8_t* q = c.x.quants + static_cast<std::size_t>(s) * kGroup * R;
      const Sums<I16, R> dots = int4_dots<R, M>(w, (s - g * M) * kGroup, q);
      each<R>([&](int r) {
        total.at[r] = fma(scales, to_float(dots.at[r]) * splat(c.x.scales[s * R + r]), total.at[r]);
      });
    }
    add_minima<R, M>(total, w, c.x.sums + static_cast<std::size_t>(g) * M * R);
  }
  each<R>([&](int r) { store(c.out + r * c.out_stride, total.at[r]); });
}

template <int R, int M>
void int4(const Call& c) {
  return c.x.quants ? int4_integer<R, M>(c) : int4_dense<R, M>(c);
}

inline Int8Group int8_group(const Call& c, int g) {
  return {c.panel + static_cast<std::size_t>(g) * Int8Group::bytes};
}

// int8 weights with a scale a group, float32 activations.
template <int R>
void int8_groups_dense(const Call& c) {
  Sums<V16, R> total = zeros<R>();
  const float* x = c.x.values;
  for (int g = 0; g < c.depth / kGroup; ++g) {
    const Int8Group w = int8_group(c, g);
    Sums<V16, R> group = zeros<R>();
    for (int k = 0; k < kGroup; k += 4, x += 4 * R) {
      const I16 block = w.block(k);
      each<4>([&](int j) { add_products<R>(group, x + j * R, Int8::weight(block, j)); });
    }
    const V16 scales = w.scales();
    each<R>([&](int r) { total.at[r] = fma(scales, group.at[r], total.at[r]); });
  }
  each<R>([&](int r) { store(c.out + r * c.out_stride, total.at[r]); });
}

// The same with quantised activations.
template <int R>
void int8_groups_integer(const Call& c) {
  Sums<V16, R> total = zeros<R>();
  const std::int8_t* q = c.x.quants;
  const I16 shift = splat_i32(static_cast<std::int32_t>(0x80808080u));
  for (int g = 0; g < c.depth / kGroup; ++g) {
    const Int8Group w = int8_group(c, g);
    Sums<I16, R> dots;
    each<R>([&](int r) { dots.at[r] = splat_i32(c.x.offsets[g * R + r]); });
    for (int k = 0; k < kGroup; k += 4, q += 4 * R) {
      const I16 block = w.block(k) ^ shift;
      each<R>([&](int r) { dots.at[r] = dot4(dots.at[r], block, four_bytes(q + 4 * r)); });
    }
    const V16 scales = w.scales();
    each<R>([&](int r) {
      total.at[r] = fma(to_float(dots.at[r]) * splat(c.x.scales[g * R + r]), scales, total.at[r]);
    });
  }
  each<R>([&](int r) { store(c.out + r * c.out_stride, total.at[r]); });
}

template <int R>
void run_tile(Format format, int group, const Call& c) {
  const bool integer = c.x.quants != nullptr;
  switch (format) {
    case Format::f32: return dense<F32, R>(c);
    case Format::bf16: return dense<Bf16, R>(c);
    case Format::int8: return integer ? int8_integer<R>(c) : dense<Int8, R>(c);
    case Format::int8_groups: return integer ? int8_groups_integer<R>(c) : int8_groups_dense<R>(c);
    case Format::int4: return group == 32 ? int4<R, 1>(c) : group == 64 ? int4<R, 2>(c) : int4<R, 4>(c);
  }
}

// One panel after the other: a single stream of memory, which the prefetchers follow. Two side by side keep the units
// busier from a cache, yet take a quarter longer from memory, unless they are stored as one.
template <int R>
void run_panels(const Panels& w, int panel, int count, const Tile& x, float* out, int out_stride) {
  if (w.pairs && count == 2) return bf16_pair<R>({w.data + panel * w.stride, w.depth, x, out, out_stride, w.ahead});
  for (int p = 0; p < count; ++p)
    run_tile<R>(w.format, w.group,
                {w.data + (panel + p) * w.stride, w.depth, x, out + p * kPanel, out_stride, w.ahead});
}

template <int R>
void pick_rows(const Panels& w, int panel, int count, const Tile& x, float* out, int out_stride) {
  if (x.rows == R) return run_panels<R>(w, panel, count, x, out, out_stride);
  if constexpr (R > 1) pick_rows<R - 1>(w, panel, count, x, out, out_stride);
}

inline void multiply(const Panels& w, int panel, int count, const Tile& x, float* out, int out_stride) {
  pick_rows<kMaxRows>(w, panel, count, x, out, out_stride);
}

}  // namespace draftproof::DRAFTPROOF_ISA
