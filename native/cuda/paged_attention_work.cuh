// How a call of paged attention is cut into items of work, and which keys a query position sees.
#ifndef SM70_CUDA_PAGED_ATTENTION_WORK_CUH_
#define SM70_CUDA_PAGED_ATTENTION_WORK_CUH_

#include "device.cuh"
#include "paged_attention.h"

namespace paged_attention {

// One item of work.
struct Item {
  int sequence;
  int first_query;  // token index of the sequence's first query row
  int queries;
  int length;
  int row_block;
  int partition;
  int partitions;  // of this sequence; 1 when it is not split
  int split_row;   // index of its first query row among the rows of split sequences
  int chunk;       // keys of a partition
  int group;       // query heads of a KV head
  // Where Items goes on: the sequences below `base` have that many items, and rows of split sequences.
  int base = 0;
  int before = 0;
  int split_before = 0;
};

__device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Keys of a partition: the least chunk, or what `partitions` of them need to cover the sequence, rounded up to a
// quarter of its leading power of two. It depends on the length alone and seldom changes with it, so that a row decoded
// alone and a row verified among others are cut at the same keys.
__device__ inline int chunk_of(const PagedAttentionArgs& args, int length) {
  const int least = static_cast<int>(args.chunk);
  const int needed = ceil_div(length, static_cast<int>(args.partitions));
  if (needed <= least) return least;
  const int quarter = max(64, (1 << (31 - __clz(needed))) / 4);
  return ceil_div(needed, quarter) * quarter;
}

__device__ inline int inclusive_scan(int value) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int below = __shfl_up_sync(kFullMask, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

// Lengths of sequence `index`; a sequence past the end of the batch has none.
struct Lengths {
  int first_query = 0, queries = 0, length = 0;
  __device__ Lengths(const PagedAttentionArgs& args, int64_t index) {
    if (index >= args.batch) return;
    const int* starts = static_cast<const int*>(args.query_start);
    // All three are asked for at once.
    const int64_t begin = starts[index];
    const int64_t end = starts[index + 1];
    const int seen = static_cast<const int*>(args.seq_lens)[index];
    // A damaged table must not send the kernel outside its tensors.
    if (begin < 0 || end < begin || end > args.tokens) return;
    first_query = static_cast<int>(begin);
    queries = static_cast<int>(end - begin);
    const int64_t capacity = args.max_blocks * args.block_size;
    if (seen > capacity) report_fault(static_cast<int*>(args.fault), kFaultLength, index, 0, seen);
    length = seen < 0 ? 0 : seen > capacity ? static_cast<int>(capacity) : seen;
  }
  __device__ bool split() const { return queries <= kMaxSplitQueries; }
};

// Walks the items in order; the whole warp takes part and every lane gets the same item.
class Items {
 public:
  __device__ Items(const PagedAttentionArgs& args, int rows_per_block)
      : args_(args),
        rows_per_block_(rows_per_block),
        group_(static_cast<int>(args.query_heads) / static_cast<int>(args.kv_heads)) {}

  // Finds item `index`, from where the last one was found: the indices of successive calls must not fall.
  __device__ bool find(int index, Item& item) const {
    const int lane = threadIdx.x % kWarp;
    for (; item.base < args_.batch; item.base += kWarp) {
      const Lengths own(args_, item.base + lane);
      const int blocks = ceil_div(own.queries * group_, rows_per_block_);
      const int chunk = chunk_of(args_, own.length);
      const int partitions = own.split() ? max(1, ceil_div(own.length, chunk)) : 1;
      const int items = blocks * partitions;
      const int split_rows = own.split() ? own.queries : 0;
      const int end = inclusive_scan(items);
      const int split_end = inclusive_scan(split_rows);
      const int total = __shfl_sync(kFullMask, end, kWarp - 1);
      if (index - item.before >= total) {
        item.before += total;
        item.split_before += __shfl_sync(kFullMask, split_end, kWarp - 1);
        continue;
      }
      const int wanted = index - item.before;
      const int owner = __ffs(static_cast<int>(__ballot_sync(kFullMask, wanted < end))) - 1;
      const int rest = wanted - __shfl_sync(kFullMask, end - items, owner);
      const int owner_blocks = __shfl_sync(kFullMask, blocks, owner);
      item.sequence = item.base + owner;
      item.first_query = __shfl_sync(kFullMask, own.first_query, owner);
      item.queries = __shfl_sync(kFullMask, own.queries, owner);
      item.length = __shfl_sync(kFullMask, own.length, owner);
      item.partitions = __shfl_sync(kFullMask, partitions, owner);
      item.chunk = __shfl_sync(kFullMask, chunk, owner);
      item.group = group_;
      item.split_row = item.split_before + __shfl_sync(kFullMask, split_end - split_rows, owner);
      item.partition = rest / owner_blocks;
      // Later rows see more keys: the longest work goes first.
      item.row_block = owner_blocks - 1 - rest % owner_blocks;
      return true;
    }
    return false;
  }

 private:
  const PagedAttentionArgs& args_;
  int rows_per_block_;
  int group_;
};

// Which keys a query position sees.
struct Mask {
  static constexpr int kFar = 1 << 30;  // as good as no limit
  int length;
  int anchor;  // keys below it are always seen
  int near;    // so are keys above position - near
  bool causal;
  int64_t left, right;  // -1: no limit

  __device__ Mask(const PagedAttentionArgs& args, const Item& item)
      : length(item.length), causal(args.causal != 0), left(args.window_left), right(args.window_right) {
    const bool anchored = args.anchor_lens != nullptr;
    anchor = anchored ? static_cast<const int*>(args.anchor_lens)[item.sequence] : item.length;
    near = !anchored ? 0 : args.anchored_window < kFar ? static_cast<int>(args.anchored_window) : kFar;
  }

  __device__ int first(int position) const {
    return left >= 0 && position > left ? static_cast<int>(position - left) : 0;
  }
  // One past the last; 0 for a position before the sequence.
  __device__ int end(int position) const {
    if (position < 0) return 0;
    int64_t limit = causal ? position + int64_t{1} : int64_t{length};
    if (right >= 0 && position + right + 1 < limit) limit = position + right + 1;
    return static_cast<int>(limit < length ? limit : length);
  }
  // Of the keys past the anchor, those up to this one are not seen.
  __device__ int far(int position) const { return position - near; }
};

// Four elements of a finished row: `value` over the sum of the weights.
__device__ inline void write_row(const PagedAttentionArgs& args, int64_t token, int64_t head, int d,
                                 const float4& value, float sum) {
  __half* out = static_cast<__half*>(args.out) + token * args.out_token_stride + head * args.out_head_stride + d;
  const float scale = static_cast<float>(args.v_scale);
  uint2 result = make_uint2(0, 0);  // a row that sees no key
  if (sum != 0.0f) {
    result.x = half2_bits(__floats2half2_rn(value.x / sum * scale, value.y / sum * scale));
    result.y = half2_bits(__floats2half2_rn(value.z / sum * scale, value.w / sum * scale));
  }
  *reinterpret_cast<uint2*>(out) = result;
}

}  // namespace paged_attention

#endif  // SM70_CUDA_PAGED_ATTENTION_WORK_CUH_
