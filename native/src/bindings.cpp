// The extension module draftproof._kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "float_mode.h"
#include "model.h"
#include "spread.h"
#include "vocabulary_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace draftproof {
namespace {

template <class T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <int n>
using Output = nb::ndarray<float, nb::ndim<n>, nb::c_contig, nb::device::cpu>;

template <class T>
int rows_of(const Array2<T>& w) {
  return static_cast<int>(w.shape(0));
}
template <class T>
int columns_of(const Array2<T>& w) {
  return static_cast<int>(w.shape(1));
}

void require_shape(bool right) {
  if (!right) throw std::invalid_argument("the arrays' shapes do not belong together");
}

std::shared_ptr<Matrix> pack_f32(Arena& arena, Array2<float> w) {
  return Matrix::from_f32(arena, w.data(), rows_of(w), columns_of(w));
}

std::shared_ptr<Matrix> pack_bf16(Arena& arena, Array2<std::uint16_t> w) {
  return Matrix::from_bf16(arena, w.data(), rows_of(w), columns_of(w));
}

std::shared_ptr<Matrix> pack_int8(Arena& arena, Array2<std::int8_t> q, Array1<float> scales) {
  require_shape(scales.shape(0) == q.shape(0));
  return Matrix::from_int8(arena, q.data(), scales.data(), rows_of(q), columns_of(q));
}

std::shared_ptr<Matrix> pack_int8_groups(Arena& arena, Array2<std::int8_t> q, Array2<std::uint16_t> scales) {
  require_shape(scales.shape(0) == q.shape(0) && scales.shape(1) == q.shape(1) / kGroup);
  return Matrix::from_int8_groups(arena, q.data(), scales.data(), rows_of(q), columns_of(q));
}

std::shared_ptr<Matrix> pack_int4(Arena& arena, Array2<std::uint8_t> q, Array2<std::uint16_t> scales,
                                  Array2<std::uint16_t> minima) {
  const std::size_t groups = scales.shape(1);
  require_shape(scales.shape(0) == q.shape(0) && minima.shape(0) == q.shape(0) && minima.shape(1) == groups &&
                groups > 0 && q.shape(1) % groups == 0);
  const int group = static_cast<int>(q.shape(1) / groups);
  return Matrix::from_int4(arena, q.data(), scales.data(), minima.data(), rows_of(q), columns_of(q), group);
}

void unpack_row(const Matrix& m, int output, Output<1> out) {
  require_shape(output >= 0 && output < m.outputs() && static_cast<int>(out.shape(0)) == m.depth());
  m.row(output, out.data());
}

// y = x w^T through the packing, tiles and threads of a forward.
void matmul(const Matrix& w, Array2<float> x, Output<2> y, bool quantise, const std::string& isa, int threads) {
  require_shape(columns_of(x) == w.depth() && y.shape(0) == x.shape(0) && static_cast<int>(y.shape(1)) == w.outputs() &&
                rows_of(x) > 0);
  const Kernels& table = kernels(isa.c_str());
  const std::shared_ptr<Pool> pool = shared_pool(threads);
  const nb::gil_scoped_release released;
  const std::lock_guard lock(pool->owner);
  const StandardFloats floats;
  PackedRows packed(table, quantise);
  packed.resize(rows_of(x), w);
  std::vector<const float*> inputs(x.shape(0));
  for (std::size_t row = 0; row < inputs.size(); ++row) inputs[row] = x.data() + row * x.shape(1);
  pack_rows(*pool, packed, inputs.data());
  const auto together = [&](int) -> const PackedRows& { return packed; };
  multiply(*pool, table, w, together, [&](int row, int first, int count, const float* values) {
    std::copy_n(values, count, y.data() + static_cast<std::size_t>(row) * w.outputs() + first);
  });
}

Request make_request(const nb::tuple& item, const Config& config, std::size_t layers) {
  const auto tokens = nb::cast<Array1<std::int64_t>>(item[1]);
  Request request{};
  request.cache = &nb::cast<Cache&>(item[0]);
  request.tokens.assign(tokens.data(), tokens.data() + tokens.shape(0));
  request.parents = nb::cast<std::vector<int>>(item[2]);
  request.rows = nb::cast<int>(item[3]);
  request.resume = nb::cast<int>(item[4]);
  const auto logits = nb::cast<Output<2>>(item[5]);
  require_shape(static_cast<int>(logits.shape(0)) == request.rows &&
                static_cast<int>(logits.shape(1)) == logits_width(config));
  request.logits = logits.data();
  if (!item[6].is_none()) {
    const auto hidden = nb::cast<Output<3>>(item[6]);
    require_shape(hidden.shape(0) == request.tokens.size() && hidden.shape(1) == layers &&
                  static_cast<int>(hidden.shape(2)) == config.hidden);
    request.hidden = hidden.data();
  }
  if (config.fuse) {
    const auto states = nb::cast<Array2<float>>(item[7]);
    request.own_states = nb::cast<bool>(item[8]);
    const int width = request.own_states ? config.hidden : config.fuse->depth();
    require_shape(states.shape(0) == request.tokens.size() && columns_of(states) == width);
    request.states = states.data();
  } else if (item.size() > 7) {
    const auto tokens_of_text = nb::cast<Array1<std::int64_t>>(item[7]);
    const auto rows = nb::cast<Array2<float>>(item[8]);
    request.text_tokens.assign(tokens_of_text.data(), tokens_of_text.data() + tokens_of_text.shape(0));
    require_shape(rows.shape(0) == request.text_tokens.size() && columns_of(rows) == config.hidden &&
                  (request.text_tokens.empty() || !config.head_tokens.empty()));
    for (const int token : request.text_tokens) require_shape(token >= 0 && token < config.vocab);
    request.text_rows = rows.data();
  }
  return request;
}

void forward(const Model& model, const std::vector<nb::tuple>& items, std::vector<int> layers, int exit_layer) {
  std::vector<Request> requests;
  for (const nb::tuple& item : items) requests.push_back(make_request(item, model.config(), layers.size()));
  const Ask ask{std::move(layers), exit_layer};
  const nb::gil_scoped_release released;
  model.forward(requests, ask);
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const char* const* name = kernel_names(); *name; ++name) names.emplace_back(*name);
  return names;
}

void bind_config(nb::module_& m) {
  nb::class_<Rope>(m, "Rope").def(nb::init<>()).def_rw("frequencies", &Rope::frequencies).def_rw("scale", &Rope::scale);
  nb::enum_<Activation>(m, "Activation").value("silu", Activation::silu).value("gelu_tanh", Activation::gelu_tanh);
  nb::class_<Config>(m, "Config")
      .def(nb::init<>())
      .def_rw("max_context", &Config::max_context)
      .def_rw("vocab", &Config::vocab)
      .def_rw("hidden", &Config::hidden)
      .def_rw("heads", &Config::heads)
      .def_rw("kv_heads", &Config::kv_heads)
      .def_rw("head_dim", &Config::head_dim)
      .def_rw("intermediate", &Config::intermediate)
      .def_rw("eps", &Config::eps)
      .def_rw("attention_scale", &Config::attention_scale)
      .def_rw("embedding_scale", &Config::embedding_scale)
      .def_rw("activation", &Config::activation)
      .def_rw("quantised_activations", &Config::quantised_activations)
      .def_rw("ropes", &Config::ropes)
      .def_prop_rw(
          "embedding", [](const Config& c) { return std::const_pointer_cast<Matrix>(c.embedding); },
          [](Config& c, std::shared_ptr<Matrix> w) { c.embedding = std::move(w); })
      .def_prop_rw(
          "head", [](const Config& c) { return std::const_pointer_cast<Matrix>(c.head); },
          [](Config& c, std::shared_ptr<Matrix> w) { c.head = std::move(w); })
      .def_prop_rw(
          "fuse", [](const Config& c) { return std::const_pointer_cast<Matrix>(c.fuse); },
          [](Config& c, std::shared_ptr<Matrix> w) { c.fuse = std::move(w); })
      .def_rw("head_tokens", &Config::head_tokens)
      .def_rw("fuse_norm", &Config::fuse_norm)
      .def_rw("embedding_norm", &Config::embedding_norm)
      .def_rw("normed_residual", &Config::normed_residual)
      .def_rw("final_norm", &Config::final_norm);
}

template <class Class>
void bind_weights(Class& c, const char* name, Weights Layer::* field) {
  c.def_prop_rw(
      name, [field](const Layer& l) { return std::const_pointer_cast<Matrix>(l.*field); },
      [field](Layer& l, std::shared_ptr<Matrix> w) { l.*field = std::move(w); });
}

void bind_layer(nb::module_& m) {
  auto layer = nb::class_<Layer>(m, "Layer");
  layer.def(nb::init<>());
  bind_weights(layer, "qkv", &Layer::qkv);
  bind_weights(layer, "out", &Layer::out);
  bind_weights(layer, "gate_up", &Layer::gate_up);
  bind_weights(layer, "down", &Layer::down);
  layer.def_rw("qkv_bias", &Layer::qkv_bias)
      .def_rw("out_bias", &Layer::out_bias)
      .def_rw("attention_norm", &Layer::attention_norm)
      .def_rw("mlp_norm", &Layer::mlp_norm)
      .def_rw("query_norm", &Layer::query_norm)
      .def_rw("key_norm", &Layer::key_norm)
      .def_rw("attention_out_norm", &Layer::attention_out_norm)
      .def_rw("mlp_out_norm", &Layer::mlp_out_norm)
      .def_rw("window", &Layer::window)
      .def_rw("rope", &Layer::rope);
}

void bind_matrix(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix")
      .def_prop_ro("outputs", &Matrix::outputs)
      .def_prop_ro("depth", &Matrix::depth)
      .def_prop_ro("bytes", &Matrix::bytes)
      .def("unpack_row", &unpack_row, "output"_a, "out"_a);
  m.def("matmul", &matmul, "w"_a, "x"_a, "y"_a, "quantise"_a = false, "isa"_a = "auto", "threads"_a = 1);
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<>())
      .def("pack_f32", &pack_f32, "w"_a)
      .def("pack_bf16", &pack_bf16, "w"_a)
      .def("pack_int8", &pack_int8, "q"_a, "scales"_a)
      .def("pack_int8_groups", &pack_int8_groups, "q"_a, "scales"_a)
      .def("pack_int4", &pack_int4, "q"_a, "scales"_a, "minima"_a);
}

void bind_model(nb::module_& m) {
  nb::class_<Cache>(m, "Cache")
      .def_prop_ro("length", &Cache::length)
      .def_prop_ro("shallow", &Cache::shallow)
      .def_prop_ro("bytes", &Cache::bytes)
      .def("reusable", &Cache::reusable, "length"_a)
      .def("rollback", &Cache::rollback, "length"_a, "keep"_a);
  nb::class_<Model>(m, "Model")
      .def(nb::init<Config, std::vector<Layer>, const std::string&, int, const Model*>(), "config"_a, "layers"_a,
           "isa"_a, "threads"_a, "caches_of"_a = nb::none())
      .def("new_cache", &Model::new_cache)
      .def("forward", &forward, "segments"_a, "layers"_a, "exit_layer"_a)
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("isa", [](const Model& model) { return model.kernels().name; });
}

}  // namespace

NB_MODULE(_kernels, m) {
  bind_matrix(m);
  bind_config(m);
  bind_layer(m);
  bind_model(m);
  bind_vocabulary(m);
  m.def("isas", &isas);
}

}  // namespace draftproof
