// Which cache entries each new token sees.
#pragma once

#include <vector>

namespace draftproof {

// The ancestors of a token and itself, in the order of the text: entries [0, straight), then `bent`, one by one. In a
// chain every token is straight. Keys are always taken in this order, so a path in a tree gives the bits of the plain
// text.
struct Path {
  int straight;
  std::vector<int> bent;

  int length() const { return straight + static_cast<int>(bent.size()); }
  int position() const { return length() - 1; }
};

// Paths of the last `count` described entries; `base` is the number of entries before the first described one.
std::vector<Path> paths(int base, const std::vector<int>& parents, int count);

}  // namespace draftproof
