// State slots of Gated DeltaNet. A sequence starts from slot initial_slots[b] (-1: padding) and leaves its state behind
// token t in slot slots[t] (-1: not kept).
#ifndef SM70_CPU_GDN_SLOTS_H_
#define SM70_CPU_GDN_SLOTS_H_

#include <cstdint>

#include "op.h"

namespace sm70 {

struct GdnSlots {
  const int32_t* initial_slots;
  const int32_t* slots;
  const int32_t* query_start;
  int64_t tokens, batch, states;

  // `only_last`: no token but the last of a sequence may name a slot.
  int check(bool only_last) const {
    const auto ll = [](int64_t v) { return static_cast<long long>(v); };
    if (query_start[0] != 0 || query_start[batch] != tokens)
      return fail(kBadValue, "query_start: runs from %d to %d, need 0 to the %lld rows of x", query_start[0],
                  query_start[batch], ll(tokens));
    for (int64_t b = 0; b < batch; ++b) {
      if (query_start[b + 1] < query_start[b])
        return fail(kBadValue, "query_start[%lld] is %d after %d, need ascending numbers", ll(b + 1),
                    query_start[b + 1], query_start[b]);
      if (initial_slots[b] < -1 || initial_slots[b] >= states)
        return fail(kBadValue, "initial_slots[%lld] is %d, allowed -1 (padding) to %lld", ll(b), initial_slots[b],
                    ll(states - 1));
      for (int64_t t = query_start[b]; t < query_start[b + 1]; ++t) {
        if (slots[t] < -1 || slots[t] >= states)
          return fail(kBadValue, "slots[%lld] is %d, allowed -1 (not kept) to %lld", ll(t), slots[t], ll(states - 1));
        if (only_last && slots[t] >= 0 && t + 1 < query_start[b + 1])
          return fail(kBadValue, "slots[%lld] is %d: in chunks only the last token of a sequence may keep its state",
                      ll(t), slots[t]);
      }
    }
    return kOk;
  }
};

}  // namespace sm70

#endif  // SM70_CPU_GDN_SLOTS_H_
