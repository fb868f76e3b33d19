// The floating-point mode in which all results are defined: round to nearest, subnormals kept.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace draftproof {

// Python code can switch subnormals off for its own thread, and new threads inherit that: the bits must not.
class StandardFloats {
 public:
  StandardFloats() : saved_(mode()) { set_mode(0x1f80); }
  ~StandardFloats() { set_mode(saved_); }
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

 private:
#if defined(__x86_64__)
  static unsigned mode() { return _mm_getcsr(); }
  static void set_mode(unsigned mode) { _mm_setcsr(mode); }
#else
  static unsigned mode() { return 0; }
  static void set_mode(unsigned) {}
#endif
  unsigned saved_;
};

}  // namespace draftproof
