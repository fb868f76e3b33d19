// Where a row's logits go: a reduced head's to their tokens' places, with those of the text's own tokens beside them.
#include <algorithm>
#include <limits>

#include "forward.h"

namespace draftproof {

float* Forward::logits_of(int a) const {
  const Row& row = rows_[active_[a]];
  return requests_[row.request].logits + static_cast<std::size_t>(line(row)) * logits_width(config_);
}

// What lies between the tokens of a reduced head is empty.
void Forward::write_logits(float* out, int first, int count, const float* values) const {
  const std::vector<int>& tokens = config_.head_tokens;
  if (tokens.empty()) return void(std::copy_n(values, count, out + first));
  const int next = first + count, from = first == 0 ? 0 : tokens[first];
  const int to = next == static_cast<int>(tokens.size()) ? config_.vocab : tokens[next];
  std::fill(out + from, out + to, -std::numeric_limits<float>::infinity());
  for (int i = 0; i < count; ++i) out[tokens[first + i]] = values[i];
}

// Logits of the text's own tokens.
void Forward::add_text_rows(int a) {
  const Request& request = requests_[rows_[active_[a]].request];
  const int count = static_cast<int>(request.text_tokens.size());
  if (count == 0) return;
  std::vector<float> normed(static_cast<std::size_t>(config_.hidden)), found(request.text_tokens.size());
  kernels_.rms_norm(state(active_[a]), config_.final_norm.data(), config_.eps, config_.hidden, normed.data());
  kernels_.dots(normed.data(), request.text_rows, count, config_.hidden, found.data());
  for (int t = 0; t < count; ++t) logits_of(a)[request.text_tokens[t]] = found[t];
}

}  // namespace draftproof
