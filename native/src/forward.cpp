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
      packed_(kernels_, config_.quantised_activations) {
  const std::size_t count = rows_.size();
  const int heads = config_.heads + 2 * config_.kv_heads;
  state_.resize(count * config_.hidden);
  qkv_.resize(count * heads * config_.head_dim);
  mixed_.resize(count * config_.heads * config_.head_dim);
  gated_.resize(count * config_.intermediate);
}

void Forward::run() {
  const int stop = ask_.exit_layer < 0 ? static_cast<int>(model_.layers().size()) : ask_.exit_layer;
  if (config_.fuse) fuse();
  else embed();
  compute_angles();
  for (int l = 0; l < stop; ++l) {
    select(l);
    write_hidden(l);
    layer(l);
  }
  select(stop);
  write_hidden(stop);
  logits();
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
  packed_.resize(active(), *config_.fuse);
  normed_.resize(active_.size() * depth);
  spread_rows(pool_, active(), config_.hidden, [&](int a, int) {
    const Row& row = rows_[active_[a]];
    const float* x = requests_[row.request].states + row.token * depth;
    float* out = &normed_[a * depth];
    if (config_.fuse_norm.empty()) std::copy_n(x, depth, out);
    else kernels_.rms_norm(x, config_.fuse_norm.data(), config_.eps, static_cast<int>(depth), out);
  });
  pack_rows(pool_, packed_, active(), normed_.data());
  multiply(pool_, kernels_, *config_.fuse, packed_, [&](int a, int first, int count, const float* values) {
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

void Forward::select(int layer) {
  active_.clear(), spans_.clear();
  for (int i = 0; i < static_cast<int>(rows_.size()); ++i) {
    if (rows_[i].first_layer > layer) continue;
    if (spans_.empty() || spans_.back().request != rows_[i].request)
      spans_.push_back({rows_[i].request, active(), active()});
    active_.push_back(i);
    spans_.back().last = active();
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
  mlp(model_.layers()[index]);
}

void Forward::normalise(const Vector& weight, const Matrix& w) {
  const std::size_t hidden = static_cast<std::size_t>(config_.hidden);
  packed_.resize(active(), w);
  normed_.resize(active_.size() * hidden);
  spread_rows(pool_, active(), config_.hidden, [&](int a, int) {
    kernels_.rms_norm(state(active_[a]), weight.data(), config_.eps, config_.hidden, &normed_[a * hidden]);
  });
  pack_rows(pool_, packed_, active(), normed_.data());
}

// The input of a trained head's attention: [norm(embedding), norm(state)].
void Forward::normalise_pair(const Vector& weight, const Matrix& w) {
  const std::size_t hidden = static_cast<std::size_t>(config_.hidden);
  packed_.resize(active(), w);
  normed_.resize(active_.size() * 2 * hidden);
  spread_rows(pool_, active(), config_.hidden, [&](int a, int) {
    const float* embedded = &embedded_[active_[a] * hidden];
    float* out = &normed_[a * 2 * hidden];
    kernels_.rms_norm(embedded, config_.embedding_norm.data(), config_.eps, config_.hidden, out);
    kernels_.rms_norm(state(active_[a]), weight.data(), config_.eps, config_.hidden, out + hidden);
    if (config_.normed_residual) std::copy_n(out + hidden, hidden, state(active_[a]));
  });
  pack_rows(pool_, packed_, active(), normed_.data());
}

// Adds a block's outputs, collected in delta_, to the states, behind a norm of their own if the model has one.
void Forward::add_to_state(const Vector& norm) {
  spread_rows(pool_, active(), config_.hidden, [&](int a, int) {
    float* delta = &delta_[static_cast<std::size_t>(a) * config_.hidden];
    if (!norm.empty()) kernels_.rms_norm(delta, norm.data(), config_.eps, config_.hidden, delta);
    float* x = state(active_[a]);
    for (int h = 0; h < config_.hidden; ++h) x[h] += delta[h];
  });
}

void Forward::attention(int index) {
  const Layer& layer = model_.layers()[index];
  if (config_.fuse) normalise_pair(layer.attention_norm, *layer.qkv);
  else normalise(layer.attention_norm, *layer.qkv);
  const int width = layer.qkv->outputs();
  multiply(pool_, kernels_, *layer.qkv, packed_, [&](int a, int first, int count, const float* values) {
    float* out = &qkv_[static_cast<std::size_t>(a) * width + first];
    for (int i = 0; i < count; ++i) out[i] = layer.qkv_bias.empty() ? values[i] : values[i] + layer.qkv_bias[first + i];
  });
  prepare_heads(index);
  attend(index);

  packed_.resize(active(), *layer.out);
  pack_rows(pool_, packed_, active(), mixed_.data());
  project(*layer.out, layer.out_bias, layer.attention_out_norm);
}

void Forward::mlp(const Layer& layer) {
  normalise(layer.mlp_norm, *layer.gate_up);
  multiply(pool_, kernels_, *layer.gate_up, packed_, [&](int a, int first, int, const float* values) {
    kernels_.gate(config_.activation, values, values + kPanel, kPanel,
                  &gated_[static_cast<std::size_t>(a) * config_.intermediate + first / 2]);
  });
  packed_.resize(active(), *layer.down);
  pack_rows(pool_, packed_, active(), gated_.data());
  project(*layer.down, {}, layer.mlp_out_norm);
}

void Forward::project(const Matrix& w, const Vector& bias, const Vector& norm) {
  delta_.resize(static_cast<std::size_t>(active()) * config_.hidden);
  multiply(pool_, kernels_, w, packed_, [&](int a, int first, int count, const float* values) {
    float* out = &delta_[static_cast<std::size_t>(a) * config_.hidden + first];
    for (int i = 0; i < count; ++i) out[i] = bias.empty() ? values[i] : values[i] + bias[first + i];
  });
  add_to_state(norm);
}

void Forward::logits() {
  std::erase_if(active_, [&](int i) {
    const Request& request = requests_[rows_[i].request];
    return rows_[i].token < static_cast<int>(request.tokens.size()) - request.rows;
  });
  if (active_.empty()) return;
  normalise(config_.final_norm, *config_.head);
  multiply(pool_, kernels_, *config_.head, packed_, [&](int a, int first, int count, const float* values) {
    const Row& row = rows_[active_[a]];
    const Request& request = requests_[row.request];
    const std::size_t line =
        static_cast<std::size_t>(row.token - (static_cast<int>(request.tokens.size()) - request.rows));
    std::copy_n(values, count, request.logits + line * config_.head->outputs() + first);
  });
}

}  // namespace draftproof
