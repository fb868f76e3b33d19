// What Python sees of the kernels on rows over the vocabulary.
#include "vocabulary_bindings.h"

#include <nanobind/ndarray.h>

#include <stdexcept>

#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace draftproof {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RowsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumbersOut = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void require(bool right) {
  if (!right) throw std::invalid_argument("the arrays' shapes do not belong together");
}

void probabilities(Rows scores, float temperature, RowsOut out) {
  require(scores.shape(0) == out.shape(0) && scores.shape(1) == out.shape(1) && temperature > 0.0f);
  const Kernels& table = kernels("auto");
  const std::size_t rows = scores.shape(0), size = scores.shape(1);
  const nb::gil_scoped_release released;
  for (std::size_t r = 0; r < rows; ++r)
    table.probabilities(scores.data() + r * size, static_cast<int>(size), 1.0f / temperature, out.data() + r * size);
}

void residual(Rows p, Rows q, Numbers scale, RowsOut out, NumbersOut mass, NumbersOut overlap) {
  const std::size_t rows = q.shape(0), size = q.shape(1);
  require(p.shape(0) >= rows && p.shape(1) == size && out.shape(0) == rows && out.shape(1) == size);
  require(scale.shape(0) >= rows && mass.shape(0) == rows && overlap.shape(0) == rows);
  const Kernels& table = kernels("auto");
  const nb::gil_scoped_release released;
  for (std::size_t r = 0; r < rows; ++r)
    table.residual(p.data() + r * size, q.data() + r * size, static_cast<float>(scale.data()[r]),
                   static_cast<int>(size), out.data() + r * size, mass.data() + r, overlap.data() + r);
}

int draw(Row row, double u) {
  require(row.shape(0) > 0 && u >= 0.0 && u < 1.0);
  const Kernels& table = kernels("auto");
  const nb::gil_scoped_release released;
  return table.draw(row.data(), static_cast<int>(row.shape(0)), u);
}

}  // namespace

void bind_vocabulary(nb::module_& m) {
  m.def("probabilities", &probabilities, "scores"_a, "temperature"_a, "out"_a);
  m.def("residual", &residual, "p"_a, "q"_a, "scale"_a, "out"_a, "mass"_a, "overlap"_a);
  m.def("draw", &draw, "row"_a, "u"_a);
}

}  // namespace draftproof
