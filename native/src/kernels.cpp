// The table of one instruction set; compiled once for each, with DRAFTPROOF_ISA naming it.
#include "kernels.h"

#include "filters.h"
#include "multiply.h"
#include "race.h"
#include "rows.h"
#include "vocabulary.h"

#define DRAFTPROOF_TEXT(x) #x
#define DRAFTPROOF_NAME(x) DRAFTPROOF_TEXT(x)

namespace draftproof::DRAFTPROOF_ISA {

extern const Kernels table{
    DRAFTPROOF_NAME(DRAFTPROOF_ISA),
    kMaxRows,
    kPairRows == kMaxRows,
    multiply,
    transpose,
    quantise,
    group_sums,
    rms_norm,
    dots,
    gate,
    rotate,
    softmax,
    mix,
    fold,
    probabilities,
    best,
    residual,
    compare,
    draw,
    filter,
    race,
};

}  // namespace draftproof::DRAFTPROOF_ISA
