// One call of a model: its rows, their scratch memory and the phases of a layer. Internal to model.cpp and its parts.
#pragma once

#include <vector>

#include "attention_tile.h"
#include "model.h"
#include "packed.h"
#include "paths.h"

namespace draftproof {

// A token being computed.
struct Row {
  int request;
  int token;        // index within the request
  int entry;        // index in the cache
  int first_layer;  // 0, or the layer from which a shallow entry is taken up
  const Path* path;
};

// Rows [first, last) of one request, whose attention is computed together.
struct Span {
  int request;
  int first, last;
};

// Inputs of a product as one thread made them, or all threads together. Threads share no line.
struct alignas(64) Inputs {
  PackedRows packed;
  std::vector<float> normed, states;  // [active row][width]
  std::vector<const float*> rows;     // of the active rows
  int product = 0;                    // for which they are made

  Inputs(const Kernels& kernels, bool quantise) : packed(kernels, quantise) {}
};

// A batch of rows on its way through the layers. Scratch is [row][width], row by row.
class Forward {
 public:
  Forward(const Model& model, std::vector<Request>& requests, const Ask& ask, std::vector<Row> rows);
  // Runs the layers, writes logits and hidden states; the rows' states stay in `state`.
  void run();
  float* state(int row) { return &state_[static_cast<std::size_t>(row) * config_.hidden]; }

 private:
  void embed();
  void fuse();
  void write_hidden(int depth);
  void layer(int index);
  void attention(int index);
  void mlp(const Layer& layer);
  void logits();
  float* logits_of(int a) const;
  void write_logits(float* out, int first, int count, const float* values) const;
  void add_text_rows(int a);

  void begin(int layer);
  template <class Chosen>
  void select(Chosen&& chosen);
  void narrow();
  int line(const Row& row) const;  // of the request's logits; negative where none are wanted
  bool asked(int depth) const;
  void compute_angles();
  void prepare_head(int index, const Vector& norm, int row, float* head, float scale) const;
  void prepare_heads(int index);
  void attend(int index);
  struct Part;
  struct PageItem {
    int part, page;
  };
  struct Place {
    int row, head;
  };
  std::vector<Part> attention_parts() const;
  Place place(const Part& part, int q) const;
  void open_tile(AttentionTile& tile, int index, const Part& part);
  void attend_whole(int index, const std::vector<Part>& parts);
  std::vector<PageItem> page_items(const std::vector<Part>& parts) const;
  void attend_divided(int index, const std::vector<Part>& parts);
  void fold_shares(const AttentionTile& tile, float* total, const float* share) const;
  void close_tile(const AttentionTile& tile, const Part& part, const float* total);
  // input(active row, where it may be made) -> that row of the matrix's input. store as in `multiply`.
  // renews: making it makes new states.
  template <class Input, class Store>
  void product(const Matrix& w, bool renews, Input&& input, Store&& store);
  template <class Input>
  void make(Inputs& own, const Matrix& w, bool alone, Input&& input);
  const float* latest(int a, Inputs& own);
  const float* normalise(const Vector& weight, int a, Inputs& own);
  const float* normalise_pair(const Vector& weight, int a, Inputs& own);
  void project(const Matrix& w, const Vector& bias, const Vector& norm, const float* inputs);
  void settle();

  int active() const { return static_cast<int>(active_.size()); }

  const Model& model_;
  const Config& config_;
  const Kernels& kernels_;
  Pool& pool_;
  std::vector<Request>& requests_;
  const Ask& ask_;
  std::vector<Row> rows_;
  std::vector<int> active_;  // rows that take part in the current layer, ascending
  std::vector<Span> spans_;  // the same rows by request, as indices into active_
  std::vector<Inputs> own_;  // a thread each
  Inputs together_;
  int products_ = 0;
  std::vector<float> state_, qkv_, mixed_, gated_, delta_;
  const Vector* waiting_ = nullptr;  // norm of what lies in delta_ and is still to be added to the states
  std::vector<float> embedded_;  // of a trained head's tokens
  std::vector<float> angles_;  // [rope][row][cosines, sines]
  // What a worker needs for attention.
  struct Desk {
    AttentionTile tile;
    std::vector<float> scores, total, share;
  };
  std::vector<Desk> desks_;
  std::vector<AttentionTile> tiles_;  // of a context that is divided
  std::vector<float> shares_;         // of its pages
};

}  // namespace draftproof
