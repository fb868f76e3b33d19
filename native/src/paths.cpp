#include "paths.h"

#include <cstddef>

namespace draftproof {

std::vector<Path> paths(int base, const std::vector<int>& parents, int count) {
  std::vector<Path> all;
  all.reserve(parents.size());
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const int entry = base + static_cast<int>(i), parent = parents[i];
    Path path = parent < 0 ? Path{base, {}} : all[static_cast<std::size_t>(parent)];
    if (path.bent.empty() && path.straight == entry) path.straight = entry + 1;
    else path.bent.push_back(entry);
    all.push_back(std::move(path));
  }
  all.erase(all.begin(), all.end() - count);
  return all;
}

}  // namespace draftproof
