#include "forward.h"

#include <algorithm>
#include <cmath>

#include "spread.h"

namespace draftproof {

Forward::Forward(const Model& model, std::vector<Request>& requests, const Ask& ask, std::vector<Row> rows)
    : model_(model),
      config_(model.config()),
      kernels_(model.kernels()),
      pool_(model.pool()),
      requests_(requests),
      ask_(ask),
      rows_(std::move(rows)),
      together_(kernels_, config_.quantised_activations) {
  const std::size_t count = rows_.size();
  const int heads = config_.heads + 2 * config_.kv_heads;
  state_.resize(count * config_.hidden);
  qkv_.resize(count * heads * config_.head_dim);
  mixed_.resize(count * config_.heads * config_.head_dim);
  gated_.resize(count * config_.intermediate);
  delta_.resize(count * config_.hidden);
  own_.assign(static_cast<std::size_t>(pool_.threads()), together_);
}

void Forward::run() {
  const int stop = ask_.exit_layer < 0 ? static_cast<int>(model_.layers().size()) : ask_.exit_layer;
  if (config_.fuse) fuse();
  else embed();
  compute_angles();
  for (int l = 0; l < stop; ++l) {
    begin(l);
    layer(l);
  }
  begin(stop);
  settle();
  logits();
}

// The rows of a layer. What waits is added first where other rows come in or states are asked for.
void Forward::begin(int layer) {
  const bool joined =
      std::any_of(rows_.begin(), rows_.end(), [layer](const Row& row) { return row.first_layer == layer; });
  if (joined || asked(layer)) settle();
  if (joined) select([layer](const Row& row) { return row.first_layer <= layer; });
  if (asked(layer)) write_hidden(layer);
}

// Inputs that are few are made by every thread for itself: that is cheaper than lines of memory that go from core to
// core. The states that the caller made on the way stay.
template <class Input, class Store>
void Forward::product(const Matrix& w, bool renews, Input&& input, Store&& store) {
  const bool alone = few(active(), w.depth());
  if (!alone) settle(), make(together_, w, false, input);
  ++products_;
  const auto made = [&](int worker) -> const PackedRows& {
    Inputs& own = alone ? own_[static_cast<std::size_t>(worker)] : together_;
    if (alone && own.product != products_) make(own, w, true, input), own.product = products_;
    return own.packed;
  };
  multiply(pool_, kernels_, w, made, store);
  if (!renews && !waiting_) return;
  made(0);
  const std::vector<float>& states = alone ? own_[0].states : together_.states;
  for (int a = 0; a < active(); ++a)
    std::copy_n(&states[static_cast<std::size_t>(a) * config_.hidden], config_.hidden, state(active_[a]));
  waiting_ = nullptr;
}

template <class Input>
void Forward::make(Inputs& own, const Matrix& w, bool alone, Input&& input) {
  const std::size_t count = active_.size();
  own.packed.resize(active(), w);
  grow(own.normed, count * w.depth()), grow(own.states, count * config_.hidden), grow(own.rows, count);
  spread(pool_, alone, active(), [&](int a, int) { own.rows[a] = input(a, own); });
  if (!alone) return pack_rows(pool_, own.packed, own.rows.data());
  for (int t = 0; t < own.packed.tiles(); ++t) own.packed.pack(t, 0, w.depth(), &own.rows[own.packed.start(t)]);
}

void Forward::embed() {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const Request& request = requests_[row.request];
    float* x = state(static_cast<int>(i));
    if (row.first_layer > 0) {
      std::copy_n(request.cache->shallow_state(row.entry), config_.hidden, x);
      continue;
    }
    config_.embedding->row(static_cast<int>(request.tokens[row.token]), x);
    for (int h = 0; h < config_.hidden; ++h) x[h] *= config_.embedding_scale;
  }
}

// What a trained head begins from.
void Forward::fuse() {
  const std::size_t hidden = static_cast<std::size_t>(config_.hidden), depth = config_.fuse->depth();
  embedded_.resize(rows_.size() * hidden);
  active_.clear();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Request& request = requests_[rows_[i].request];
    const std::size_t token = static_cast<std::size_t>(rows_[i].token);
    config_.embedding->row(static_cast<int>(request.tokens[token]), &embedded_[i * hidden]);
    if (request.own_states) std::copy_n(request.states + token * hidden, hidden, state(static_cast<int>(i)));
    else active_.push_back(static_cast<int>(i));
  }
  if (active_.empty()) return;
  const auto input = [&](int a, Inputs& own) {
    const Row& row = rows_[active_[a]];
    const float* x = requests_[row.request].states + row.token * depth;
    if (config_.fuse_norm.empty()) return x;
    float* out = &own.normed[a * depth];
    kernels_.rms_norm(x, config_.fuse_norm.data(), config_.eps, static_cast<int>(depth), out);
    return static_cast<const float*>(out);
  };
  product(*config_.fuse, false, input, [&](int a, int first, int count, const float* values) {
    std::copy_n(values, count, state(active_[a]) + first);
  });
}

// Angles in float32, as the checkpoints were trained with.
void Forward::compute_angles() {
  const int half = config_.head_dim / 2;
  angles_.resize(config_.ropes.size() * rows_.size() * 2 * half);
  float* out = angles_.data();
  for (const Rope& rope : config_.ropes)
    for (const Row& row : rows_) {
      const float position = static_cast<float>(row.path->position());
      for (int i = 0; i < half; ++i) {
        out[i] = std::cos(position * rope.frequencies[i]) * rope.scale;
        out[half + i] = std::sin(position * rope.frequencies[i]) * rope.scale;
      }
      out += 2 * half;
    }
}

template <class Chosen>
void Forward::select(Chosen&& chosen) {
  active_.clear(), spans_.clear();
  for (int i = 0; i < static_cast<int>(rows_.size()); ++i) {
    if (!chosen(rows_[i])) continue;
    if (spans_.empty() || spans_.back().request != rows_[i].request)
      spans_.push_back({rows_[i].request, active(), active()});
    active_.push_back(i);
    spans_.back().last = active();
  }
}

int Forward::line(const Row& row) const {
  const Request& request = requests_[row.request];
  return row.token - (static_cast<int>(request.tokens.size()) - request.rows);
}

bool Forward::asked(int depth) const {
  return std::find(ask_.layers.begin(), ask_.layers.end(), depth) != ask_.layers.end();
}

// The last layer goes on with the rows whose logits are wanted: of a prompt that is one, once all keys are stored.
void Forward::narrow() {
  const std::vector<int> before = active_;
  select([this](const Row& row) { return line(row) >= 0; });
  const std::size_t width = static_cast<std::size_t>(config_.heads + 2 * config_.kv_heads) * config_.head_dim;
  for (std::size_t to = 0, from = 0; to < active_.size(); ++to, ++from) {
    while (before[from] != active_[to]) ++from;
    if (from != to) std::copy_n(&qkv_[from * width], width, &qkv_[to * width]);
  }
}

void Forward::write_hidden(int depth) {
  for (std::size_t j = 0; j < ask_.layers.size(); ++j) {
    if (ask_.layers[j] != depth) continue;
    for (const int i : active_) {
      float* out = requests_[rows_[i].request].hidden;
      if (out) std::copy_n(state(i), config_.hidden, out + (rows_[i].token * ask_.layers.size() + j) * config_.hidden);
    }
  }
}

void Forward::layer(int index) {
  if (active_.empty()) return;
  attention(index);
  if (!active_.empty()) mlp(model_.layers()[index]);
}

// The state of an active row, with what waits to be added to it.
const float* Forward::latest(int a, Inputs& own) {
  const std::size_t hidden = static_cast<std::size_t>(config_.hidden);
  const float* x = state(active_[a]);
  if (!waiting_) return x;
  const float* delta = &delta_[a * hidden];
  float* sum = &own.states[a * hidden];
  if (!waiting_->empty()) {
    kernels_.rms_norm(delta, waiting_->data(), config_.eps, config_.hidden, sum);
    delta = sum;
  }
  for (std::size_t h = 0; h < hidden; ++h) sum[h] = x[h] + delta[h];
  return sum;
}

// Adds what waits.
void Forward::settle() {
  if (!waiting_) return;
  grow(together_.states, active_.size() * config_.hidden);
  spread_rows(pool_, active(), config_.hidden,
              [&](int a, int) { std::copy_n(latest(a, together_), config_.hidden, state(active_[a])); });
  waiting_ = nullptr;
}

const float* Forward::normalise(const Vector& weight, int a, Inputs& own) {
  float* out = &own.normed[static_cast<std::size_t>(a) * config_.hidden];
  kernels_.rms_norm(latest(a, own), weight.data(), config_.eps, config_.hidden, out);
  return out;
}

// The input of a trained head's attention: [norm(embedding), norm(state)].
const float* Forward::normalise_pair(const Vector& weight, int a, Inputs& own) {
  const std::size_t hidden = static_cast<std::size_t>(config_.hidden);
  const float* embedded = &embedded_[active_[a] * hidden];
  float* out = &own.normed[a * 2 * hidden];
  kernels_.rms_norm(embedded, config_.embedding_norm.data(), config_.eps, config_.hidden, out);
  kernels_.rms_norm(latest(a, own), weight.data(), config_.eps, config_.hidden, out + hidden);
  if (config_.normed_residual) std::copy_n(out + hidden, hidden, &own.states[a * hidden]);
  return out;
}

void Forward::attention(int index) {
  const Layer& layer = model_.layers()[index];
  const int width = layer.qkv->outputs();
  const auto input = [&](int a, Inputs& own) {
    return config_.fuse ? normalise_pair(layer.attention_norm, a, own) : normalise(layer.attention_norm, a, own);
  };
  product(*layer.qkv, config_.fuse && config_.normed_residual, input, [&](int a, int first, int count, const float* values) {
    float* out = &qkv_[static_cast<std::size_t>(a) * width + first];
    for (int i = 0; i < count; ++i) out[i] = layer.qkv_bias.empty() ? values[i] : values[i] + layer.qkv_bias[first + i];
  });
  prepare_heads(index);
  const int last = static_cast<int>(model_.layers().size()) - 1;
  if (index == last && ask_.exit_layer < 0 && !asked(last + 1)) narrow();
  if (active_.empty()) return;
  attend(index);
  project(*layer.out, layer.out_bias, layer.attention_out_norm, mixed_.data());
}

void Forward::mlp(const Layer& layer) {
  const auto input = [&](int a, Inputs& own) { return normalise(layer.mlp_norm, a, own); };
  product(*layer.gate_up, false, input, [&](int a, int first, int, const float* values) {
    kernels_.gate(config_.activation, values, values + kPanel, kPanel,
                  &gated_[static_cast<std::size_t>(a) * config_.intermediate + first / 2]);
  });
  project(*layer.down, {}, layer.mlp_out_norm, gated_.data());
}

// A block's outputs wait to be added to the states, behind a norm of their own if the model has one.
void Forward::project(const Matrix& w, const Vector& bias, const Vector& norm, const float* inputs) {
  const auto input = [&](int a, Inputs&) { return inputs + static_cast<std::size_t>(a) * w.depth(); };
  product(w, false, input, [&](int a, int first, int count, const float* values) {
    float* out = &delta_[static_cast<std::size_t>(a) * config_.hidden + first];
    for (int i = 0; i < count; ++i) out[i] = bias.empty() ? values[i] : values[i] + bias[first + i];
  });
  waiting_ = &norm;
}

void Forward::logits() {
  select([this](const Row& row) { return line(row) >= 0; });
  if (active_.empty()) return;
  const auto input = [&](int a, Inputs& own) { return normalise(config_.final_norm, a, own); };
  product(*config_.head, false, input, [&](int a, int first, int count, const float* values) {
    write_logits(logits_of(a), first, count, values);
  });
  for (int a = 0; a < active(); ++a) add_text_rows(a);
}

}  // namespace draftproof
