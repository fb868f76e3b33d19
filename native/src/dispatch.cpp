// Which table of kernels this machine can run.
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace draftproof {
namespace {

constexpr int kTables = 3;

struct Known {
  const Kernels* tables[kTables + 1] = {};
  const char* names[kTables + 1] = {};
  int count = 0;

  void add(const Kernels& table) { tables[count] = &table, names[count++] = table.name; }
};

Known find_tables() {
  Known known;
#if defined(DRAFTPROOF_X86)
  __builtin_cpu_init();
  const bool narrow = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512vnni");
  if (narrow && wide) known.add(avx512::table);
  if (narrow) known.add(avx2::table);
#endif
#if defined(__aarch64__)
  known.add(neon::table);
#else
  known.add(generic::table);
#endif
  return known;
}

const Known& known_tables() {
  static const Known known = find_tables();
  return known;
}

}  // namespace

const Kernels& kernels(const char* isa) {
  const Known& known = known_tables();
  if (std::strcmp(isa, "auto") == 0) return *known.tables[0];
  for (int i = 0; i < known.count; ++i)
    if (std::strcmp(isa, known.names[i]) == 0) return *known.tables[i];
  throw std::invalid_argument(std::string("this machine has no ") + isa + " kernels");
}

const char* const* kernel_names() { return known_tables().names; }

}  // namespace draftproof
