// What Python sees of the kernels on rows over the vocabulary.
#include "vocabulary_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "kernels.h"
#include "philox.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace draftproof {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RowsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool right) {
  if (!right) throw std::invalid_argument("the arrays' shapes do not belong together");
}

int size_of(const Row& row) { return static_cast<int>(row.shape(0)); }

// Softmax of scores / temperature, then top-p and min-p; each row by itself.
void distributions(Rows scores, float temperature, double top_p, float min_p, RowsOut out, const char* isa) {
  require(scores.shape(0) == out.shape(0) && scores.shape(1) == out.shape(1) && temperature > 0.0f);
  const Kernels& table = kernels(isa);
  const std::size_t rows = scores.shape(0), size = scores.shape(1);
  const bool filtered = size > 0 && (top_p < 1.0 || min_p > 0.0f);
  const nb::gil_scoped_release released;
  const std::unique_ptr<float[]> room(filtered ? new float[size + 16] : nullptr);
  for (std::size_t r = 0; r < rows; ++r) {
    float* row = out.data() + r * size;
    table.probabilities(scores.data() + r * size, static_cast<int>(size), 1.0f / temperature, row);
    if (filtered) table.filter(row, static_cast<int>(size), top_p, min_p, room.get());
  }
}

std::pair<int, float> best(Row scores, const char* isa) {
  std::pair<int, float> found{-1, 0.0f};
  if (scores.shape(0) > 0) found.first = kernels(isa).best(scores.data(), size_of(scores), &found.second);
  return found;
}

double residual(Row p, Row q, float scale, RowOut out, const char* isa) {
  require(p.shape(0) == q.shape(0) && p.shape(0) == out.shape(0));
  return kernels(isa).residual(p.data(), q.data(), scale, size_of(p), out.data());
}

std::pair<double, double> compare(Row p, Row q, float scale, const char* isa) {
  require(p.shape(0) == q.shape(0));
  std::pair<double, double> sums;
  kernels(isa).compare(p.data(), q.data(), scale, size_of(p), &sums.first, &sums.second);
  return sums;
}

int draw(Row row, double u, const char* isa) {
  require(row.shape(0) > 0 && u >= 0.0 && u < 1.0);
  return kernels(isa).draw(row.data(), size_of(row), u);
}

int race(Row row, RowOut gaps, std::uint64_t seed, std::uint64_t position, const char* isa) {
  require(row.shape(0) == gaps.shape(0));
  return kernels(isa).race(row.data(), gaps.data(), size_of(row), seed, position);
}

// As rng.uniform: a number in [0, 1) with 53 random bits.
double uniform(std::uint64_t seed, std::uint64_t position, std::uint64_t use, std::uint64_t index) {
  return static_cast<double>(philox(1 + index / 4, position, seed, use).words[index % 4] >> 11) * 0x1p-53;
}

}  // namespace

void bind_vocabulary(nb::module_& m) {
  m.def("distributions", &distributions, "scores"_a, "temperature"_a, "top_p"_a, "min_p"_a, "out"_a, "isa"_a = "auto");
  m.def("best", &best, "scores"_a, "isa"_a = "auto");
  m.def("residual", &residual, "p"_a, "q"_a, "scale"_a, "out"_a, "isa"_a = "auto");
  m.def("compare", &compare, "p"_a, "q"_a, "scale"_a, "isa"_a = "auto");
  m.def("draw", &draw, "row"_a, "u"_a, "isa"_a = "auto");
  m.def("race", &race, "row"_a, "gaps"_a, "seed"_a, "position"_a, "isa"_a = "auto");
  m.def("uniform", &uniform, "seed"_a, "position"_a, "use"_a, "index"_a);
}

}  // namespace draftproof
