// Attention of query rows over a paged KV cache on tensor cores, for decode, verification and prefill alike.
//
// A block takes 16 * kRowTiles query rows of one sequence and one KV head: the rows of the GQA group and of
// neighbouring positions lie side by side in one tile, so the keys and values are streamed once for all of them. Work
// is cut into items (sequence, block of rows, partition of the keys); lengths are read from device memory, so one
// captured launch serves every length. A row's bits depend on nothing but its own keys: partitions start at fixed keys,
// masked keys add exact zeros, and the reduction goes through the partitions in a fixed order.
#ifndef SM70_CUDA_PAGED_ATTENTION_CUH_
#define SM70_CUDA_PAGED_ATTENTION_CUH_

#include "device.cuh"
#include "fp8.cuh"
#include "paged_attention_work.cuh"

namespace paged_attention {

namespace wmma = nvcuda::wmma;

constexpr int kPad = 8;  // halves between rows in shared memory: spreads a column over the banks

// Threads of a block. Shared memory lets a V100 hold one or two blocks, so a block brings many warps of its own.
constexpr int threads_for(int dim) { return dim == 64 ? 256 : 512; }
constexpr float kLog2e = 1.4426950408889634f;

// How the cache stores a number. kPerVector: numbers in 16 bytes.
struct Half {
  static constexpr int kPerVector = 8;
  __device__ static void store(__half* to, const uint4& vector, bool) { *reinterpret_cast<uint4*>(to) = vector; }
};

// E4M3 or E5M2: a uniform branch, which costs less than kernels of its own for each.
struct Fp8 {
  static constexpr int kPerVector = 16;
  __device__ static uint2 decode4(uint32_t codes, bool e4m3) {
    return e4m3 ? E4M3::decode4(codes) : E5M2::decode4(codes);
  }
  __device__ static void store(__half* to, const uint4& vector, bool e4m3) {
    const uint2 a = decode4(vector.x, e4m3), b = decode4(vector.y, e4m3);
    const uint2 c = decode4(vector.z, e4m3), d = decode4(vector.w, e4m3);
    reinterpret_cast<uint4*>(to)[0] = make_uint4(a.x, a.y, b.x, b.y);
    reinterpret_cast<uint4*>(to)[1] = make_uint4(c.x, c.y, d.x, d.y);
  }
};

// Sizes of a kernel; kDim is the head dimension rounded up to 64, 128 or 256 (the rest is zero in shared memory).
template <int kDim, int kRowTiles, class Format>
struct Shape {
  static constexpr int kThreads = threads_for(kDim);
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kLanesPerRow = kThreads / 64;  // threads that share a row of scores, whatever kRowTiles
  // Parts of the head dimension whose scores are summed apart, so that every warp has a tile of them.
  static constexpr int kDepths = kDim == 256 ? 2 : 1;
  static constexpr int kKeys = kDim == 256 ? 32 : 64;  // keys of a tile
  static constexpr int kRowStride = kDim + kPad;       // of Q, K and V, in halves
  static constexpr int kScoreStride = kKeys + 4;       // in floats
  static constexpr int kWeightStride = kKeys + kPad;   // in halves
  static constexpr int kStageStride = kDim + 4;        // of 16 output rows, in floats

  static constexpr int kQ = 0;  // offsets in bytes
  static constexpr int kK = kQ + kRows * kRowStride * 2;
  static constexpr int kV = kK + kKeys * kRowStride * 2;
  static constexpr int kScores = kV + kKeys * kRowStride * 2;
  static constexpr int kWeights = kScores + kDepths * kRows * kScoreStride * 4;
  static constexpr int kOffsets = kWeights + kRows * kWeightStride * 2;
  static constexpr int kRowState = kOffsets + 2 * 2 * kKeys * 8;  // two buffers, K and V
  static constexpr int kBytes = kRowState + 3 * kRows * 4;
  static_assert(kK % 32 == 0 && kV % 32 == 0 && kScores % 32 == 0 && kWeights % 32 == 0, "wmma needs 32-byte tiles");
  static_assert(16 * kStageStride * 4 <= kKeys * kRowStride * 2, "the staging rows lie over V");
  static_assert(kBytes <= 96 * 1024, "SM70 has 96 KiB");

  static constexpr int kVectorsPerRow = kDim / Format::kPerVector;
  static constexpr int kVectors = kKeys * kVectorsPerRow / kThreads;  // a thread's share of a K or V tile
  static_assert(kVectors >= 1 && kKeys * kVectorsPerRow % kThreads == 0, "a tile divides among the threads");

  // Tiles of the output: the warps stand kColumnWarps wide over the head dimension and kRowWarps deep over the rows.
  static constexpr int kColumnTiles = kDim / 16;
  static constexpr int kColumnWarps = kColumnTiles < kWarps ? kColumnTiles : kWarps;
  static constexpr int kRowWarps = kWarps / kColumnWarps;
  static constexpr int kOwnColumns = kColumnTiles / kColumnWarps;
  static constexpr int kOwnRows = (kRowTiles + kRowWarps - 1) / kRowWarps;
};

template <int kDim, int kRowTiles, class Format>
class Kernel {
  using S = Shape<kDim, kRowTiles, Format>;
  static constexpr int kThreads = S::kThreads;
  using Accumulator = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

 public:
  __device__ Kernel(const PagedAttentionArgs& args, unsigned char* shared)
      : args_(args),
        q_(reinterpret_cast<__half*>(shared + S::kQ)),
        k_(reinterpret_cast<__half*>(shared + S::kK)),
        v_(reinterpret_cast<__half*>(shared + S::kV)),
        scores_(reinterpret_cast<float*>(shared + S::kScores)),
        weights_(reinterpret_cast<__half*>(shared + S::kWeights)),
        offsets_(reinterpret_cast<int64_t*>(shared + S::kOffsets)),
        rescale_(reinterpret_cast<float*>(shared + S::kRowState)),
        maximum_(rescale_ + S::kRows),
        sum_(maximum_ + S::kRows),
        thread_(threadIdx.x),
        warp_(threadIdx.x / kWarp),
        kv_head_(blockIdx.y),
        group_(static_cast<int>(args.query_heads / args.kv_heads)) {}

  __device__ void run() {
    learn_fragment_rows();
    Items items(args_, S::kRows);
    Item item;
    for (int64_t index = blockIdx.x; items.find(index, item); index += gridDim.x) attend(item);
  }

 private:
  // The order of elements in an accumulator is not specified; a tile whose elements are their own row numbers tells it.
  __device__ void learn_fragment_rows() {
    for (int at = thread_; at < 256; at += kThreads) scores_[at / 16 * S::kScoreStride + at % 16] = float(at / 16);
    __syncthreads();
    Accumulator rows;
    wmma::load_matrix_sync(rows, scores_, S::kScoreStride, wmma::mem_row_major);
    fragment_rows_ = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) fragment_rows_ |= static_cast<uint32_t>(rows.x[i]) << (4 * i);
  }

  __device__ int position_of(const Item& item, int row) const { return item.length - item.queries + row / group_; }

  __device__ void attend(const Item& item) {
    const Mask mask(args_, item);
    const int first_row = item.row_block * S::kRows;
    const int rows = min(S::kRows, item.queries * group_ - first_row);
    const int first_position = position_of(item, first_row);
    const int last_position = position_of(item, first_row + rows - 1);

    // Tiles of keys that some row of this block sees, within this partition.
    const int partition_begin = item.partitions > 1 ? item.partition * item.chunk : 0;
    const int partition_end = item.partitions > 1 ? min(item.length, partition_begin + item.chunk) : item.length;
    const int begin = max(partition_begin, mask.first(first_position)) / S::kKeys;
    const int end = ceil_div(min(partition_end, mask.end(last_position)), S::kKeys);
    const int key_end = min(partition_end, end * S::kKeys);
    const auto next_tile = [&](int tile) {
      while (tile < end && !(tile * S::kKeys < mask.anchor || mask.anchored((tile + 1) * S::kKeys - 1, first_position)))
        ++tile;
      return tile < end ? tile : end;
    };

    load_queries(item, first_row, rows);
    const int own_row = thread_ / S::kLanesPerRow;
    const int own_position = own_row < rows ? position_of(item, first_row + own_row) : -1;
    row_first_ = mask.first(own_position);
    row_end_ = min(partition_end, mask.end(own_position));
    row_maximum_ = -infinity();
    row_sum_ = 0.0f;
#pragma unroll
    for (int m = 0; m < S::kOwnRows; ++m)
#pragma unroll
      for (int c = 0; c < S::kOwnColumns; ++c) wmma::fill_fragment(out_[m][c], 0.0f);

    // Registers hold the next tile of K and of V while the tensor cores work on this one; the addresses of a tile's
    // keys are looked up two tiles ahead.
    int tile = next_tile(begin);
    int buffer = 0;
    if (tile < end) {
      int following = next_tile(tile + 1);
      write_offsets(0, find_offsets(item, tile, key_end));
      write_offsets(1, find_offsets(item, following, key_end));
      __syncthreads();
      fetch(k_vectors_, static_cast<const unsigned char*>(args_.k), offsets_ + buffer * 2 * S::kKeys);
      fetch(v_vectors_, static_cast<const unsigned char*>(args_.v), offsets_ + (buffer * 2 + 1) * S::kKeys);
      store(k_, k_vectors_);
      fetch(k_vectors_, static_cast<const unsigned char*>(args_.k), offsets_ + (buffer ^ 1) * 2 * S::kKeys);
      Offsets ahead;
      while (tile < end) {
        const int after = next_tile(following + 1);
        __syncthreads();  // K is whole; V and the weights of the last tile are free
        score_tiles();
        ahead = find_offsets(item, after, key_end);
        store(v_, v_vectors_);
        fetch(v_vectors_, static_cast<const unsigned char*>(args_.v), offsets_ + ((buffer ^ 1) * 2 + 1) * S::kKeys);
        __syncthreads();  // scores and V are whole; K is free
        write_offsets(buffer, ahead);
        weigh(mask, tile * S::kKeys, own_row, own_position);
        store(k_, k_vectors_);
        __syncthreads();  // weights and offsets are whole
        fetch(k_vectors_, static_cast<const unsigned char*>(args_.k), offsets_ + buffer * 2 * S::kKeys);
        add_values();
        tile = following;
        following = after;
        buffer ^= 1;
      }
    }
    if (own_row < S::kRows && thread_ % S::kLanesPerRow == 0) {
      maximum_[own_row] = row_maximum_;
      sum_[own_row] = row_sum_;
    }
    __syncthreads();
    write(item, first_row, rows);
  }

  __device__ void load_queries(const Item& item, int first_row, int rows) {
    constexpr int kPerRow = kDim / 8;
    const __half* q = static_cast<const __half*>(args_.q);
    for (int at = thread_; at < S::kRows * kPerRow; at += kThreads) {
      const int row = at / kPerRow, d = at % kPerRow * 8;
      uint4 vector = make_uint4(0, 0, 0, 0);
      if (row < rows && d < args_.head_dim) {
        const int64_t token = item.first_query + (first_row + row) / group_;
        const int64_t head = kv_head_ * group_ + (first_row + row) % group_;
        vector = *reinterpret_cast<const uint4*>(q + token * args_.q_token_stride + head * args_.q_head_stride + d);
      }
      *reinterpret_cast<uint4*>(q_ + row * S::kRowStride + d) = vector;
    }
  }

  // Element offsets of one key's row in the two caches; -1 where there is nothing to read.
  struct Offsets {
    int64_t k = -1, v = -1;
  };

  // The key of this thread (threads past the tile have none).
  __device__ Offsets find_offsets(const Item& item, int tile, int end) const {
    Offsets offsets;
    const int key = tile * S::kKeys + thread_;
    if (thread_ >= S::kKeys || key >= end) return offsets;
    const int block_size = static_cast<int>(args_.block_size);
    const int index = key / block_size;
    const int64_t in_block = key - index * block_size;
    const int64_t block = static_cast<const int*>(args_.block_table)[item.sequence * args_.table_stride + index];
    if (block < 0 || block >= args_.num_blocks) {
      report_fault(static_cast<int*>(args_.fault), kFaultBlock, item.sequence, index, block);
      return offsets;
    }
    offsets.k = block * args_.k_block_stride + in_block * args_.k_token_stride + kv_head_ * args_.k_head_stride;
    offsets.v = block * args_.v_block_stride + in_block * args_.v_token_stride + kv_head_ * args_.v_head_stride;
    return offsets;
  }

  __device__ void write_offsets(int buffer, const Offsets& offsets) {
    if (thread_ >= S::kKeys) return;
    offsets_[buffer * 2 * S::kKeys + thread_] = offsets.k;
    offsets_[(buffer * 2 + 1) * S::kKeys + thread_] = offsets.v;
  }

  __device__ void fetch(uint4 (&vectors)[S::kVectors], const unsigned char* cache, const int64_t* offsets) const {
    constexpr int kBytes = 16 / Format::kPerVector;
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const int at = thread_ + i * kThreads;
      const int64_t offset = offsets[at / S::kVectorsPerRow];
      const int d = at % S::kVectorsPerRow * Format::kPerVector;
      // Keys that are not there are zero, not whatever the page holds: a weight of zero does not undo a NaN.
      vectors[i] = make_uint4(0, 0, 0, 0);
      if (offset >= 0 && d < args_.head_dim)
        vectors[i] = __ldg(reinterpret_cast<const uint4*>(cache + (offset + d) * kBytes));
    }
  }

  __device__ void store(__half* tile, const uint4 (&vectors)[S::kVectors]) const {
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const int at = thread_ + i * kThreads;
      Format::store(tile + at / S::kVectorsPerRow * S::kRowStride + at % S::kVectorsPerRow * Format::kPerVector,
                    vectors[i], args_.kv_format == 1);
    }
  }

  __device__ void score_tiles() {
    constexpr int kKeyTiles = S::kKeys / 16;
    constexpr int kDepth = kDim / S::kDepths;
    for (int at = warp_; at < kRowTiles * kKeyTiles * S::kDepths; at += S::kWarps) {
      const int n = at % kKeyTiles, m = at / kKeyTiles % kRowTiles, part = at / (kKeyTiles * kRowTiles);
      const __half* q = q_ + m * 16 * S::kRowStride + part * kDepth;
      const __half* k = k_ + n * 16 * S::kRowStride + part * kDepth;
      Accumulator sum;
      wmma::fill_fragment(sum, 0.0f);
#pragma unroll 2
      for (int d = 0; d < kDepth; d += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
        wmma::load_matrix_sync(a, q + d, S::kRowStride);
        wmma::load_matrix_sync(b, k + d, S::kRowStride);
        wmma::mma_sync(sum, a, b, sum);
      }
      wmma::store_matrix_sync(scores_ + (part * S::kRows + m * 16) * S::kScoreStride + n * 16, sum, S::kScoreStride,
                              wmma::mem_row_major);
    }
  }

  // Scores to weights, one step of the running softmax; weights are relative to the row's maximum so far.
  __device__ void weigh(const Mask& mask, int first_key, int row, int position) {
    if (row >= S::kRows) return;
    constexpr int kPairs = S::kKeys / (2 * S::kLanesPerRow);
    const int lane = thread_ % S::kLanesPerRow;
    const float scale = static_cast<float>(args_.scale) * kLog2e;
    float2 score[kPairs];
    float maximum = -infinity();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = (i * S::kLanesPerRow + lane) * 2;
      score[i] = *reinterpret_cast<const float2*>(scores_ + row * S::kScoreStride + column);
#pragma unroll
      for (int part = 1; part < S::kDepths; ++part) {
        const float2 more =
            *reinterpret_cast<const float2*>(scores_ + (part * S::kRows + row) * S::kScoreStride + column);
        score[i].x += more.x;
        score[i].y += more.y;
      }
      score[i].x = seen(mask, first_key + column, position) ? score[i].x * scale : -infinity();
      score[i].y = seen(mask, first_key + column + 1, position) ? score[i].y * scale : -infinity();
      maximum = fmaxf(maximum, fmaxf(score[i].x, score[i].y));
    }
#pragma unroll
    for (int step = 1; step < S::kLanesPerRow; step *= 2)
      maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, step));
    maximum = fmaxf(maximum, row_maximum_);
    // A row that has seen nothing yet keeps weights of zero: exp2(-inf - 0).
    const float base = maximum == -infinity() ? 0.0f : maximum;
    const float rescale = exp2f(row_maximum_ - base);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const __half2 weight = __floats2half2_rn(exp2f(score[i].x - base), exp2f(score[i].y - base));
      const int column = (i * S::kLanesPerRow + lane) * 2;
      *reinterpret_cast<__half2*>(weights_ + row * S::kWeightStride + column) = weight;
      const float2 rounded = __half22float2(weight);  // the sum is of the weights that multiply the values
      sum += rounded.x;
      sum += rounded.y;
    }
#pragma unroll
    for (int step = 1; step < S::kLanesPerRow; step *= 2) sum += __shfl_xor_sync(kFullMask, sum, step);
    row_sum_ = row_sum_ * rescale + sum;
    row_maximum_ = maximum;
    if (lane == 0) rescale_[row] = rescale;
  }

  __device__ bool seen(const Mask& mask, int key, int position) const {
    return key >= row_first_ && key < row_end_ && mask.anchored(key, position);
  }

  __device__ void add_values() {
    const int column_warp = warp_ % S::kColumnWarps, row_warp = warp_ / S::kColumnWarps;
#pragma unroll
    for (int own = 0; own < S::kOwnRows; ++own) {
      const int m = row_warp + own * S::kRowWarps;
      if (m >= kRowTiles) break;
      float rescale[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) rescale[i] = rescale_[m * 16 + ((fragment_rows_ >> (4 * i)) & 15)];
#pragma unroll
      for (int c = 0; c < S::kOwnColumns; ++c)
#pragma unroll
        for (int i = 0; i < 8; ++i) out_[own][c].x[i] *= rescale[i];
    }
#pragma unroll
    for (int key = 0; key < S::kKeys; key += 16) {
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b[S::kOwnColumns];
#pragma unroll
      for (int c = 0; c < S::kOwnColumns; ++c) {
        const int column = (column_warp + c * S::kColumnWarps) * 16;
        wmma::load_matrix_sync(b[c], v_ + key * S::kRowStride + column, S::kRowStride);
      }
#pragma unroll
      for (int own = 0; own < S::kOwnRows; ++own) {
        const int m = row_warp + own * S::kRowWarps;
        if (m >= kRowTiles) break;
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
        wmma::load_matrix_sync(a, weights_ + m * 16 * S::kWeightStride + key, S::kWeightStride);
#pragma unroll
        for (int c = 0; c < S::kOwnColumns; ++c) wmma::mma_sync(out_[own][c], a, b[c], out_[own][c]);
      }
    }
  }

  // Finished rows, or this partition's part of them, sixteen rows at a time through shared memory (over V).
  __device__ void write(const Item& item, int first_row, int rows) {
    float* stage = reinterpret_cast<float*>(v_);
    const int column_warp = warp_ % S::kColumnWarps, row_warp = warp_ / S::kColumnWarps;
    const bool whole = item.partitions == 1;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (m * 16 >= rows) break;
      if (m % S::kRowWarps == row_warp) {
#pragma unroll
        for (int c = 0; c < S::kOwnColumns; ++c) {
          const int column = (column_warp + c * S::kColumnWarps) * 16;
          wmma::store_matrix_sync(stage + column, out_[m / S::kRowWarps][c], S::kStageStride, wmma::mem_row_major);
        }
      }
      __syncthreads();
      const int dim = static_cast<int>(args_.head_dim);
      const int per_row = dim / 4;
      for (int at = thread_; at < 16 * per_row; at += kThreads) {
        const int row = m * 16 + at / per_row, d = at % per_row * 4;
        if (row >= rows) break;
        const float4 value = *reinterpret_cast<const float4*>(stage + at / per_row * S::kStageStride + d);
        const int query = (first_row + row) / group_;
        const int64_t head = kv_head_ * group_ + (first_row + row) % group_;
        if (whole)
          write_row(args_, item.first_query + query, head, d, value, sum_[row]);
        else
          write_partial(((item.split_row + query) * args_.query_heads + head) * args_.partitions + item.partition, d,
                        value, row);
      }
      __syncthreads();
    }
  }

  __device__ void write_partial(int64_t slot, int d, const float4& value, int row) const {
    if (d == 0) {
      const float2 stats = make_float2(maximum_[row], sum_[row]);
      static_cast<float2*>(args_.partial_stats)[slot] = stats;
    }
    // A partition that this row does not see is known by its sum of zero and never read.
    if (sum_[row] != 0.0f)
      *reinterpret_cast<float4*>(static_cast<float*>(args_.partial_out) + slot * args_.head_dim + d) = value;
  }

  const PagedAttentionArgs& args_;
  __half* q_;
  __half* k_;
  __half* v_;
  float* scores_;
  __half* weights_;
  int64_t* offsets_;
  float* rescale_;
  float* maximum_;
  float* sum_;
  int thread_;
  int warp_;
  int kv_head_;
  int group_;
  uint32_t fragment_rows_;   // four bits an element
  int row_first_, row_end_;  // keys that this thread's row sees, but for the anchor
  float row_maximum_, row_sum_;
  Accumulator out_[S::kOwnRows][S::kOwnColumns];
  uint4 k_vectors_[S::kVectors];
  uint4 v_vectors_[S::kVectors];
};

}  // namespace paged_attention

#define PAGED_ATTENTION_KERNEL(dim, tiles, name, Format)                                       \
  SM70_KERNEL((paged_attention::threads_for(dim)), paged_attention_d##dim##_m##tiles##_##name, \
              PagedAttentionArgs args) {                                                       \
    SM70_DYNAMIC_SHARED(shared);                                                               \
    paged_attention::Kernel<dim, tiles, Format>(args, shared).run();                           \
  }

#define PAGED_ATTENTION_KERNELS(dim, tiles)                      \
  PAGED_ATTENTION_KERNEL(dim, tiles, f16, paged_attention::Half) \
  PAGED_ATTENTION_KERNEL(dim, tiles, fp8, paged_attention::Fp8)

#endif  // SM70_CUDA_PAGED_ATTENTION_CUH_
