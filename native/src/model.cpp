#include "model.h"

#include <algorithm>
#include <functional>
#include <set>
#include <stdexcept>

#include "float_mode.h"
#include "forward.h"

namespace draftproof {
namespace {

constexpr int kBatch = 256;  // rows that go through the layers together: bounds the scratch memory of a long prompt

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

std::shared_ptr<const CacheShape> shape_of(const Config& config, const std::vector<Layer>& layers) {
  auto shape = std::make_shared<CacheShape>(CacheShape{config.hidden, config.kv_heads, config.head_dim, {}});
  for (const Layer& layer : layers) shape->windows.push_back(layer.window);
  return shape;
}

// A request on its way: what its rows need to know.
struct Plan {
  int before;  // entries in the cache that stay
  std::vector<Path> paths;
  int resume = 0;
  std::vector<float> states;  // of all tokens, for a call that ends at an exit layer

  std::vector<int> positions() const {
    std::vector<int> all;
    for (const Path& path : paths) all.push_back(path.position());
    return all;
  }
};

// A call that ends at an exit layer goes on behind the shallow entries; any other takes them up or drops them.
int entries_before(const Request& request, const Ask& ask) {
  return request.cache->length() + (ask.exit_layer < 0 ? 0 : request.cache->shallow());
}

// States below the exit layer were not kept; computing them again gives the same bits.
int usable_resume(const Request& request, const Ask& ask) {
  const int done = request.cache->shallow_layers();
  return std::any_of(ask.layers.begin(), ask.layers.end(), [&](int l) { return l < done; }) ? 0 : request.resume;
}

Plan make_plan(const Request& request, const Ask& ask, int max_context) {
  const int count = static_cast<int>(request.tokens.size());
  Plan plan{entries_before(request, ask), {}, usable_resume(request, ask), {}};
  plan.paths = paths(plan.before - (static_cast<int>(request.parents.size()) - count), request.parents, count);
  for (const Path& path : plan.paths)
    if (path.length() > max_context)
      throw std::overflow_error("the model has room for " + std::to_string(max_context) + " tokens");
  return plan;
}

std::vector<Row> make_rows(const std::vector<Request>& requests, const std::vector<Plan>& plans) {
  std::vector<Row> rows;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const Plan& plan = plans[r];
    for (int t = 0; t < static_cast<int>(requests[r].tokens.size()); ++t) {
      const int first_layer = t < plan.resume ? requests[r].cache->shallow_layers() : 0;
      rows.push_back({static_cast<int>(r), t, plan.before + t, first_layer, &plan.paths[t]});
    }
  }
  return rows;
}

void require_matrix(const Weights& w, int outputs, int depth, const std::string& name) {
  require(w && w->outputs() == outputs && w->depth() == depth,
          name + " must be " + std::to_string(outputs) + " x " + std::to_string(depth));
}

void require_vector(const Vector& v, int size, bool optional, const std::string& name) {
  require((optional && v.empty()) || static_cast<int>(v.size()) == size,
          name + " must have " + std::to_string(size) + " values");
}

void check_layer(const Layer& layer, const Config& c) {
  const int width = c.heads * c.head_dim, all = width + 2 * c.kv_heads * c.head_dim;
  require_matrix(layer.qkv, all, c.fuse ? 2 * c.hidden : c.hidden, "qkv");
  require_matrix(layer.out, c.hidden, width, "out");
  require_matrix(layer.gate_up, 2 * c.intermediate, c.hidden, "gate_up");
  require_matrix(layer.down, c.hidden, c.intermediate, "down");
  require_vector(layer.qkv_bias, all, true, "qkv_bias");
  require_vector(layer.out_bias, c.hidden, true, "out_bias");
  require_vector(layer.attention_norm, c.hidden, false, "attention_norm");
  require_vector(layer.mlp_norm, c.hidden, false, "mlp_norm");
  require_vector(layer.query_norm, c.head_dim, true, "query_norm");
  require_vector(layer.key_norm, c.head_dim, true, "key_norm");
  require_vector(layer.attention_out_norm, c.hidden, true, "attention_out_norm");
  require_vector(layer.mlp_out_norm, c.hidden, true, "mlp_out_norm");
  require(layer.window >= 0 && layer.rope >= 0 && layer.rope < static_cast<int>(c.ropes.size()),
          "window or rope out of range");
}

}  // namespace

Model::Model(Config config, std::vector<Layer> layers, const std::string& isa, int threads, const Model* caches_of)
    : config_(std::move(config)),
      layers_(std::move(layers)),
      shape_(shape_of(config_, layers_)),
      kernels_(&draftproof::kernels(isa.c_str())) {
  require(threads >= 1 && threads <= 1024, "threads must lie between 1 and 1024");
  check();
  if (caches_of) {
    require(*shape_ == *caches_of->shape_, "models that share caches must have the same layers");
    shape_ = caches_of->shape_;
  }
  pool_ = shared_pool(threads);
}

void Model::check() const {
  const Config& c = config_;
  const int unit = c.quantised_activations ? kGroup : kPanel;
  require(c.hidden > 0 && c.hidden % unit == 0 && c.intermediate > 0 && c.intermediate % unit == 0 && c.head_dim > 0 &&
              c.head_dim % kPanel == 0 && c.heads * c.head_dim % unit == 0,
          "hidden, intermediate and head sizes must be multiples of " + std::to_string(unit));
  require(c.kv_heads > 0 && c.heads % c.kv_heads == 0, "heads must be a multiple of kv_heads");
  require_matrix(c.embedding, c.vocab, c.hidden, "embedding");
  require(c.head && c.head->depth() == c.hidden && c.head->outputs() <= c.vocab,
          "head must have the depth of the states and at most as many outputs as there are tokens");
  const std::vector<int>& known = c.head_tokens;
  require(known.empty() || (static_cast<int>(known.size()) == c.head->outputs() && known.front() >= 0 &&
                            known.back() < c.vocab &&
                            std::adjacent_find(known.begin(), known.end(), std::greater_equal<>()) == known.end()),
          "head_tokens must be ascending tokens, one for each output of the head");
  require_vector(c.final_norm, c.hidden, false, "final_norm");
  if (c.fuse) {
    require_matrix(c.fuse, c.hidden, c.fuse->depth(), "fuse");
    require(c.fuse->depth() % unit == 0 && layers_.size() == 1,
            "a head has one layer and fuses multiples of " + std::to_string(unit));
    require_vector(c.fuse_norm, c.fuse->depth(), true, "fuse_norm");
    require_vector(c.embedding_norm, c.hidden, false, "embedding_norm");
  }
  for (const Rope& rope : c.ropes) require_vector(rope.frequencies, c.head_dim / 2, false, "frequencies");
  for (const Layer& layer : layers_) check_layer(layer, c);
}

void Model::check(const Request& request, const Ask& ask) const {
  const Cache& cache = *request.cache;
  const int count = static_cast<int>(request.tokens.size()), described = static_cast<int>(request.parents.size());
  const int total = static_cast<int>(layers_.size()), last = ask.exit_layer < 0 ? total : ask.exit_layer;
  require(cache.has_shape(shape_.get()), "the cache was made by another model");
  require(described >= count && entries_before(request, ask) >= described - count,
          "parents must cover the new tokens, and no more entries than there are");
  for (int i = 0; i < described; ++i)
    require(request.parents[i] >= -1 && request.parents[i] < i, "parents[i] must be -1 or an earlier entry");
  for (const std::int64_t token : request.tokens)
    require(token >= 0 && token < config_.vocab, "token " + std::to_string(token) + " is outside the vocabulary");
  require((request.states != nullptr) == (config_.fuse != nullptr), "a head begins from states, a decoder has none");
  require(request.rows >= 0 && request.rows <= count, "rows must lie in 0..tokens");
  require(request.resume >= 0 && request.resume <= (ask.exit_layer < 0 ? std::min(count, cache.shallow()) : 0),
          "resume exceeds the shallow entries");
  require(ask.exit_layer == -1 || (ask.exit_layer >= 1 && ask.exit_layer <= total), "exit_layer must lie in 1..layers");
  require(ask.exit_layer < 0 || cache.shallow() == 0 || cache.shallow_layers() == ask.exit_layer,
          "the shallow entries left at another layer");
  for (const int l : ask.layers) require(l >= 0 && l <= last, "layers must lie in 0..the last layer run");
}

std::size_t Model::weight_bytes() const {
  std::size_t bytes = config_.head->bytes();
  if (config_.embedding != config_.head) bytes += config_.embedding->bytes();
  if (config_.fuse) bytes += config_.fuse->bytes();
  for (const Layer& l : layers_) bytes += l.qkv->bytes() + l.out->bytes() + l.gate_up->bytes() + l.down->bytes();
  return bytes;
}

void Model::forward(std::vector<Request>& requests, const Ask& ask) const {
  const std::lock_guard lock(pool_->owner);
  const StandardFloats floats;
  std::set<const Cache*> caches;
  for (const Request& request : requests) {
    check(request, ask);
    require(caches.insert(request.cache).second, "two segments share a cache");
  }
  const int stop = ask.exit_layer < 0 ? static_cast<int>(layers_.size()) : ask.exit_layer;
  std::vector<Plan> plans;
  for (const Request& request : requests) plans.push_back(make_plan(request, ask, config_.max_context));
  for (std::size_t r = 0; r < requests.size(); ++r)
    requests[r].cache->extend(plans[r].before, plans[r].positions(), stop);

  const std::vector<Row> rows = make_rows(requests, plans);
  for (std::size_t first = 0; first < rows.size(); first += kBatch) {
    const std::size_t last = std::min(rows.size(), first + kBatch);
    Forward batch(*this, requests, ask, {&rows[first], &rows[last - 1] + 1});
    batch.run();
    for (std::size_t i = first; i < last && ask.exit_layer >= 0; ++i) {
      const float* state = batch.state(static_cast<int>(i - first));
      std::vector<float>& states = plans[static_cast<std::size_t>(rows[i].request)].states;
      states.insert(states.end(), state, state + config_.hidden);
    }
  }
  for (std::size_t r = 0; r < requests.size(); ++r) {
    if (ask.exit_layer < 0) requests[r].cache->commit(plans[r].before);
    else requests[r].cache->add_shallow(stop, plans[r].states);
  }
}

}  // namespace draftproof
