// A decoder of the Llama family by configuration, and its forward over any number of requests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "matrix.h"
#include "pool.h"

namespace draftproof {

using Vector = std::vector<float>;  // an empty one stands for "this model has none"
using Weights = std::shared_ptr<const Matrix>;

struct Rope {
  Vector frequencies;  // [head_dim / 2]
  float scale = 1.0f;  // of cosine and sine (YaRN)
};

struct Layer {
  Weights qkv;  // outputs: queries of all heads, then keys, then values
  Weights out;
  Weights gate_up;  // panels of gate and up in turn, so one item holds both
  Weights down;
  Vector qkv_bias, out_bias;
  Vector attention_norm, mlp_norm;
  Vector query_norm, key_norm;              // [head_dim]: Qwen3, Gemma-3
  Vector attention_out_norm, mlp_out_norm;  // [hidden]: Gemma-3
  int window = 0;                           // 0 sees everything
  int rope = 0;                             // index into Config::ropes
};

struct Config {
  int max_context = 0;  // positions
  int vocab = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
  float eps = 1e-6f;
  float attention_scale = 1.0f;
  float embedding_scale = 1.0f;
  Activation activation = Activation::silu;
  bool quantised_activations = false;
  std::vector<Rope> ropes;
  Weights embedding, head;
  std::vector<int> head_tokens;  // of the head's outputs, ascending, where they are not the whole vocabulary
  Vector final_norm;
  // A trained head (EAGLE-3) begins from states instead of embeddings: those of its target, combined by `fuse`, or its
  // own. Its attention reads the normed embedding and the normed state side by side.
  Weights fuse;  // null in a decoder
  Vector fuse_norm, embedding_norm;
  bool normed_residual = false;
};

// One request's share of a call. The outputs belong to the caller.
struct Request {
  Cache* cache;
  std::vector<std::int64_t> tokens;
  std::vector<int> parents;  // of the last entries; see Segment in types.py
  int rows;
  int resume;
  float* logits;  // [rows][vocabulary]; -inf where neither the head nor the text has a row
  float* hidden;  // [tokens][layers asked for][hidden], or null
  const float* states = nullptr;  // of a trained head: [tokens][depth of fuse], or [tokens][hidden] of its own
  bool own_states = false;
  std::vector<int> text_tokens;  // that the head lacks and the text has
  const float* text_rows = nullptr;  // [text_tokens][hidden], of the full head
};

struct Ask {
  std::vector<int> layers;  // states wanted after so many layers; 0 is the embedding
  int exit_layer = -1;      // -1 runs all
};

// Tokens that a row of logits stands for: a trained head's are those of its outputs alone.
inline int logits_width(const Config& config) {
  return config.head_tokens.empty() ? config.head->outputs() : config.vocab;
}

class Model {
 public:
  // With `caches_of` the two models read and extend the same caches: their layers must have the same shape.
  Model(Config config, std::vector<Layer> layers, const std::string& isa, int threads,
        const Model* caches_of = nullptr);

  std::unique_ptr<Cache> new_cache() const { return std::make_unique<Cache>(shape_); }
  void forward(std::vector<Request>& requests, const Ask& ask) const;

  const Config& config() const { return config_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const Kernels& kernels() const { return *kernels_; }
  Pool& pool() const { return *pool_; }
  std::size_t weight_bytes() const;

 private:
  void check() const;
  void check(const Request& request, const Ask& ask) const;

  Config config_;
  std::vector<Layer> layers_;
  std::shared_ptr<const CacheShape> shape_;
  const Kernels* kernels_;
  std::shared_ptr<Pool> pool_;
};

}  // namespace draftproof
