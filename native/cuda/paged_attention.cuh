// Attention of query rows over a paged KV cache on tensor cores, for decode, verification and prefill alike.
//
// A block takes 16 * kRowTiles query rows of one sequence and one KV head: the rows of the GQA group and of
// neighbouring positions lie side by side in one tile, so the keys and values are streamed once for all of them. Work
// is cut into items (sequence, block of rows, partition of the keys); lengths are read from device memory, so one
// captured launch serves every length. A row's bits depend on nothing but its own keys: partitions start at fixed keys,
// masked keys add exact zeros, and the reduction goes through the partitions in a fixed order.
#ifndef SM70_CUDA_PAGED_ATTENTION_CUH_
#define SM70_CUDA_PAGED_ATTENTION_CUH_

#include "paged_attention_shape.cuh"

namespace paged_attention {

namespace wmma = nvcuda::wmma;

template <int kDim, int kRowTiles, class Format>
class Kernel {
  using S = Shape<kDim, kRowTiles, Format>;
  static constexpr int kThreads = S::kThreads;
  static constexpr int kWeighsNothing = -1;
  using Accumulator = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

 public:
  __device__ Kernel(const PagedAttentionArgs& args, unsigned char* shared)
      : args_(args),
        q_(reinterpret_cast<__half*>(shared + S::kQ)),
        k_(reinterpret_cast<__half*>(shared + S::kK)),
        v_(reinterpret_cast<__half*>(shared + S::kV)),
        scores_(reinterpret_cast<float*>(shared + S::kScores)),
        weights_(reinterpret_cast<__half*>(shared + S::kWeights)),
        places_(reinterpret_cast<uint32_t*>(shared + S::kPlaces)),
        rescale_(reinterpret_cast<float*>(shared + S::kRowState)),
        maximum_(rescale_ + S::kRows),
        sum_(maximum_ + S::kRows),
        item_(*reinterpret_cast<Item*>(shared + S::kItem)),
        thread_(threadIdx.x),
        warp_(threadIdx.x / kWarp),
        kv_head_(blockIdx.y),
        column_live_(column() * Format::kPerVector < static_cast<int>(args.head_dim)) {}

  __device__ void run() {
    learn_fragment_rows();
    const Items items(args_, S::kRows);
    Item item;
    for (int index = blockIdx.x; items.find(index, item); index += gridDim.x) {
      // Kept in shared memory as well: what is needed at the end takes no registers until then.
      if (thread_ == 0) item_ = item;
      attend(item);
      item = item_;
      __syncthreads();  // the item was read
    }
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

  __device__ int position_of(const Item& item, int row) const { return item.length - item.queries + row / item.group; }

  __device__ void attend(const Item& item) {
    const Mask mask(args_, item);
    const int first_row = item.row_block * S::kRows;
    const int rows = min(S::kRows, item.queries * item.group - first_row);
    const int first_position = position_of(item, first_row);
    const int last_position = position_of(item, first_row + rows - 1);

    // Tiles of keys that some row of this block sees, within this partition.
    const int partition_begin = item.partitions > 1 ? item.partition * item.chunk : 0;
    const int partition_end = item.partitions > 1 ? min(item.length, partition_begin + item.chunk) : item.length;
    const int begin = max(partition_begin, mask.first(first_position)) / S::kKeys;
    const int end = ceil_div(min(partition_end, mask.end(last_position)), S::kKeys);
    const int key_end = min(partition_end, end * S::kKeys);
    const int anchor = mask.anchor, far = mask.far(first_position);
    const auto next_tile = [&](int tile) {
      while (tile < end && tile * S::kKeys >= anchor && (tile + 1) * S::kKeys - 1 <= far) ++tile;
      return tile < end ? tile : end;
    };

    int tile = next_tile(begin);
    forget_block();
    look_up(tile, 0, key_end, item.sequence);  // on its way beside the queries
    load_queries(item, first_row, rows);
    const int own_row = thread_ / S::kLanesPerRow;
    // Nobody reads what becomes of rows past the last one: they see what that one sees, and a warp of such rows weighs
    // nothing.
    constexpr int kWarpRows = kWarp / S::kLanesPerRow;
    const int own_position = position_of(item, first_row + min(own_row, rows - 1));
    row_far_ = mask.far(own_position);
    row_first_ = own_row / kWarpRows * kWarpRows < rows ? mask.first(own_position) : kWeighsNothing;
    row_end_ = min(partition_end, mask.end(own_position));
    row_maximum_ = -infinity();
    row_sum_ = 0.0f;
    bool rescales = false;  // this thread's row found a new maximum in the last tile
#pragma unroll
    for (int m = 0; m < S::kOwnRows; ++m)
#pragma unroll
      for (int c = 0; c < S::kOwnColumns; ++c) wmma::fill_fragment(out_[m][c], 0.0f);

    // Two steps a tile. The tensor cores score a tile while they add the values of the one before it; then its scores
    // become weights while its values and the keys of the next tile go from registers to shared memory. Memory is asked
    // for a tile ahead of that, and the last warp finds out where the tile after it lies.
    if (tile < end) {
      const int second = next_tile(tile + 1), third = next_tile(second + 1);
      write_places(0, 0, item.sequence);
      look_up(second, second - tile, key_end, item.sequence);
      write_places(1, 1, item.sequence);
      __syncthreads();  // Q, the item and the places are whole
      fetch(k_vectors_, args_.k, k_places(0));
      fetch(v_vectors_, args_.v, v_places(0));
      store(k_, k_vectors_);
      fetch(k_vectors_, args_.k, k_places(1));
      __syncthreads();  // K of the first tile and what was read of the places
      look_up(third, third - second, key_end, item.sequence);
      write_places(0, 2, item.sequence);
      int k_now = 0, v_now = 1;          // of the places: K's of `third`, V's of `second`
      int ahead = next_tile(third + 1);  // the tile that was looked up last
      look_up(ahead, ahead - third, key_end, item.sequence);
      for (bool first = true;; first = false) {
        // K of this tile is whole; V and the weights of the last one are, too
        const bool rescaled = __syncthreads_or(rescales) != 0;
        if (tile < end) score_tiles();
        if (!first) add_values(rescaled);
        if (tile >= end) break;
        __syncthreads();  // the scores are whole; K, V and the weights are free
        if (row_first_ != kWeighsNothing) rescales = weigh(anchor, tile * S::kKeys, own_row);
        store(v_, v_vectors_);
        store(k_, k_vectors_);
        // Nothing else is on its way here, so that waiting for the table waits for nothing else.
        const int v_free = v_now == 0 ? 2 : v_now - 1;
        write_places(k_now ^ 1, v_free, item_.sequence);  // of `ahead`
        const int before = ahead;
        ahead = next_tile(before + 1);
        look_up(ahead, ahead - before, key_end, item_.sequence);
        fetch(v_vectors_, args_.v, v_places(v_now));
        fetch(k_vectors_, args_.k, k_places(k_now));
        tile = next_tile(tile + 1);
        k_now ^= 1;
        v_now = v_now == 2 ? 0 : v_now + 1;
      }
    }
    if (own_row < S::kRows) {
#pragma unroll
      for (int step = 1; step < S::kLanesPerRow; step *= 2) row_sum_ += __shfl_xor_sync(kFullMask, row_sum_, step);
      if (thread_ % S::kLanesPerRow == 0) {
        maximum_[own_row] = row_maximum_;
        sum_[own_row] = row_sum_;
      }
    }
    __syncthreads();
    write();
  }

  __device__ void load_queries(const Item& item, int first_row, int rows) {
    constexpr int kPerRow = kDim / 8, kAll = S::kRows * kPerRow, kOwn = (kAll + kThreads - 1) / kThreads;
    const __half* q = static_cast<const __half*>(args_.q);
    uint4 vectors[kOwn];  // all on their way before the first is needed
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = thread_ + i * kThreads;
      const int row = at / kPerRow, d = at % kPerRow * 8;
      const int64_t token = item.first_query + (first_row + row) / item.group;
      const int64_t head = kv_head_ * item.group + (first_row + row) % item.group;
      const __half* from = q + token * args_.q_token_stride + head * args_.q_head_stride + d;
      vectors[i] = load_or_zero(reinterpret_cast<const uint4*>(from), row < rows && d < args_.head_dim);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = thread_ + i * kThreads;
      if (at < kAll) *reinterpret_cast<uint4*>(q_ + at / kPerRow * S::kRowStride + at % kPerRow * 8) = vectors[i];
    }
  }

  // Where the keys' rows lie in K and in V, in units of 16 bytes; kNowhere where there is nothing to read.
  __device__ uint32_t* k_places(int buffer) const { return places_ + buffer * S::kKeys; }
  __device__ uint32_t* v_places(int buffer) const { return places_ + (kKPlaces + buffer) * S::kKeys; }

  // The last warp reads the block table for a tile, long before it needs the answer, and only where a key is not in the
  // block of the tile before, which lies `advance` tiles back.
  __device__ void look_up(int tile, int advance, int end, int sequence) {
    if (warp_ != S::kWarps - 1) return;
    const int block_size = static_cast<int>(args_.block_size);
#pragma unroll
    for (int i = 0; i < S::kOwnKeys; ++i) {
      const int key = tile * S::kKeys + i * kWarp + thread_ % kWarp;
      in_block_[i] += advance * S::kKeys;
      if (key >= end) {
        in_block_[i] = -1;
      } else if (in_block_[i] >= block_size) {
        index_[i] = key / block_size;
        in_block_[i] = key - index_[i] * block_size;
        block_[i] = (static_cast<const int*>(args_.block_table) + sequence * args_.table_stride)[index_[i]];
      }
    }
  }

  __device__ void forget_block() {
#pragma unroll
    for (int i = 0; i < S::kOwnKeys; ++i) in_block_[i] = static_cast<int>(args_.block_size);
  }

  __device__ void write_places(int k_buffer, int v_buffer, int sequence) {
    if (warp_ != S::kWarps - 1) return;
#pragma unroll
    for (int i = 0; i < S::kOwnKeys; ++i) {
      const int at = i * kWarp + thread_ % kWarp;
      uint32_t k = kNowhere, v = kNowhere;
      if (in_block_[i] >= 0) {
        if (block_[i] < 0 || block_[i] >= args_.num_blocks) {
          report_fault(static_cast<int*>(args_.fault), kFaultBlock, sequence, index_[i], block_[i]);
        } else {
          k = place(i, args_.k_block_stride, args_.k_token_stride, args_.k_head_stride);
          v = place(i, args_.v_block_stride, args_.v_token_stride, args_.v_head_stride);
        }
      }
      k_places(k_buffer)[at] = k;
      v_places(v_buffer)[at] = v;
    }
  }

  // The launcher gives strides in vectors. A place fits in 32 bits, so nothing is lost that overflows on the way there.
  __device__ uint32_t place(int i, int64_t block_stride, int64_t token_stride, int64_t head_stride) const {
    return static_cast<uint32_t>(block_[i]) * static_cast<uint32_t>(block_stride) +
           static_cast<uint32_t>(in_block_[i]) * static_cast<uint32_t>(token_stride) +
           static_cast<uint32_t>(kv_head_) * static_cast<uint32_t>(head_stride);
  }

  // Which vector of a tile is this thread's i-th: a warp takes whole rows.
  __device__ int key_of(int i) const {
    return (warp_ + i * S::kWarps) * (kWarp / S::kVectorsPerRow) + Format::key(thread_ % kWarp, S::kVectorsPerRow);
  }
  __device__ int column() const { return Format::column(thread_ % kWarp, S::kVectorsPerRow); }

  __device__ void fetch(uint4 (&vectors)[S::kVectors], const void* cache, const uint32_t* places) const {
    static_assert(S::kVectorsPerRow <= kWarp, "a thread stays in its columns");
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const uint32_t place = places[key_of(i)];
      // Keys that are not there are zero, not whatever the page holds: a weight of zero does not undo a NaN.
      const bool wanted = place != kNowhere && column_live_;
      vectors[i] = load_or_zero(static_cast<const uint4*>(cache) + (static_cast<int64_t>(place) + column()), wanted);
    }
  }

  __device__ void store(__half* tile, const uint4 (&vectors)[S::kVectors]) const {
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i)
      Format::store(tile + key_of(i) * S::kRowStride + column() * Format::kPerVector, vectors[i], args_.kv_format == 1);
  }

  __device__ void score_tiles() {
    constexpr int kDepth = kDim / S::kChains;
    for (int at = warp_; at < kRowTiles * S::kKeyTiles * S::kScoreParts; at += S::kWarps) {
      const int n = at % S::kKeyTiles, m = at / S::kKeyTiles % kRowTiles, part = at / (S::kKeyTiles * kRowTiles);
      const __half* q = q_ + m * 16 * S::kRowStride + part * S::kOwnChains * kDepth;
      const __half* k = k_ + n * 16 * S::kRowStride + part * S::kOwnChains * kDepth;
      Accumulator sum[S::kOwnChains];
#pragma unroll
      for (int chain = 0; chain < S::kOwnChains; ++chain) wmma::fill_fragment(sum[chain], 0.0f);
#pragma unroll
      for (int chain = 0; chain < S::kOwnChains; ++chain) {
#pragma unroll
        for (int d = 0; d < kDepth; d += 16) {
          wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
          wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
          wmma::load_matrix_sync(a, q + chain * kDepth + d, S::kRowStride);
          wmma::load_matrix_sync(b, k + chain * kDepth + d, S::kRowStride);
          wmma::mma_sync(sum[chain], a, b, sum[chain]);
        }
      }
      // In pairs: (0 + 1) + (2 + 3).
#pragma unroll
      for (int step = 1; step < S::kOwnChains; step *= 2)
#pragma unroll
        for (int chain = 0; chain < S::kOwnChains; chain += 2 * step)
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[chain].x[i] += sum[chain + step].x[i];
      wmma::store_matrix_sync(scores_ + (part * S::kRows + m * 16) * S::kScoreStride + n * 16, sum[0], S::kScoreStride,
                              wmma::mem_row_major);
    }
  }

  // Two neighbouring scores: the sum of their parts, in pairs.
  __device__ float2 score_at(int row, int column) const {
    float2 part[S::kScoreParts];
#pragma unroll
    for (int i = 0; i < S::kScoreParts; ++i)
      part[i] = *reinterpret_cast<const float2*>(scores_ + (i * S::kRows + row) * S::kScoreStride + column);
#pragma unroll
    for (int step = 1; step < S::kScoreParts; step *= 2) {
#pragma unroll
      for (int i = 0; i < S::kScoreParts; i += 2 * step) {
        part[i].x += part[i + step].x;
        part[i].y += part[i + step].y;
      }
    }
    return part[0];
  }

  // Scores to weights, one step of the running softmax; weights are relative to the row's maximum so far. Returns
  // whether that is a new one. A lane sums its own weights; the lanes of a row are summed at the end.
  __device__ bool weigh(int anchor, int first_key, int row) {
    constexpr int kPairs = S::kKeys / (2 * S::kLanesPerRow);
    const int lane = thread_ % S::kLanesPerRow;
    const float scale = static_cast<float>(args_.scale) * kLog2e;
    float2 score[kPairs];
    // Most tiles are seen whole.
    const bool whole = first_key >= row_first_ && first_key + S::kKeys <= min(row_end_, anchor);
    float maximum = -infinity();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = (i * S::kLanesPerRow + lane) * 2;
      score[i] = score_at(row, column);
      score[i].x *= scale;
      score[i].y *= scale;
      if (!whole) {
        if (!seen(anchor, first_key + column)) score[i].x = -infinity();
        if (!seen(anchor, first_key + column + 1)) score[i].y = -infinity();
      }
      maximum = fmaxf(maximum, fmaxf(score[i].x, score[i].y));
    }
#pragma unroll
    for (int step = 1; step < S::kLanesPerRow; step *= 2)
      maximum = fmaxf(maximum, __shfl_xor_sync(kFullMask, maximum, step));
    maximum = fmaxf(maximum, row_maximum_);
    // A row that has seen nothing yet keeps weights of zero: exp2(-inf - 0).
    const float base = maximum == -infinity() ? 0.0f : maximum;
    const float rescale = exp2_or_zero(row_maximum_ - base);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const __half2 weight = __floats2half2_rn(exp2_or_zero(score[i].x - base), exp2_or_zero(score[i].y - base));
      const int column = (i * S::kLanesPerRow + lane) * 2;
      *reinterpret_cast<__half2*>(weights_ + row * S::kWeightStride + column) = weight;
      const float2 rounded = __half22float2(weight);  // the sum is of the weights that multiply the values
      sum += rounded.x;
      sum += rounded.y;
    }
    row_sum_ = row_sum_ * rescale + sum;
    row_maximum_ = maximum;
    if (lane == 0) rescale_[row] = rescale;
    return rescale != 1.0f;
  }

  __device__ bool seen(int anchor, int key) const {
    return key >= row_first_ && key < row_end_ && (key < anchor || key > row_far_);
  }

  // Where this warp stands among those that share the output; constants where the compiler can know them.
  __device__ int column_warp() const { return S::kColumnWarps == S::kWarps ? warp_ : warp_ % S::kColumnWarps; }
  __device__ int row_warp() const { return S::kRowWarps == 1 ? 0 : warp_ / S::kColumnWarps; }
  __device__ static bool is_row_tile(int m) { return kRowTiles % S::kRowWarps == 0 || m < kRowTiles; }

  // `rescaled`: some row of the block found a new maximum in this tile.
  __device__ void add_values(bool rescaled) {
    const int column_warp = this->column_warp(), row_warp = this->row_warp();
    // A new maximum is rare once some tiles were seen, and a factor of one does nothing.
    if (rescaled) {
#pragma unroll
      for (int own = 0; own < S::kOwnRows; ++own) {
        const int m = row_warp + own * S::kRowWarps;
        if (!is_row_tile(m)) break;
        float rescale[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) rescale[i] = rescale_[m * 16 + ((fragment_rows_ >> (4 * i)) & 15)];
#pragma unroll
        for (int c = 0; c < S::kOwnColumns; ++c)
#pragma unroll
          for (int i = 0; i < 8; ++i) out_[own][c].x[i] *= rescale[i];
      }
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
        if (!is_row_tile(m)) break;
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
        wmma::load_matrix_sync(a, weights_ + m * 16 * S::kWeightStride + key, S::kWeightStride);
#pragma unroll
        for (int c = 0; c < S::kOwnColumns; ++c) wmma::mma_sync(out_[own][c], a, b[c], out_[own][c]);
      }
    }
  }

  // Finished rows, or this partition's part of them, sixteen rows at a time through shared memory (over V).
  __device__ void write() {
    const int first_row = item_.row_block * S::kRows;
    const int group = item_.group;
    const int rows = min(S::kRows, item_.queries * group - first_row);
    float* stage = reinterpret_cast<float*>(v_);
    const int column_warp = this->column_warp(), row_warp = this->row_warp();
    const bool whole = item_.partitions == 1;
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
        const int query = (first_row + row) / group;
        const int64_t head = kv_head_ * group + (first_row + row) % group;
        if (whole)
          write_row(args_, item_.first_query + query, head, d, value, sum_[row]);
        else
          write_partial(((item_.split_row + query) * args_.query_heads + head) * args_.partitions + item_.partition, d,
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
  uint32_t* places_;
  float* rescale_;
  float* maximum_;
  float* sum_;
  Item& item_;
  int thread_;
  int warp_;
  int kv_head_;
  bool column_live_;                   // the columns that this thread reads are columns of the head
  uint32_t fragment_rows_;             // four bits an element
  int row_first_, row_end_, row_far_;  // keys that this thread's row sees: see Mask
  float row_maximum_, row_sum_;
  Accumulator out_[S::kOwnRows][S::kOwnColumns];
  // Of the last warp: where its keys of the tile after next lie. in_block_ is -1 for a key that is not there.
  int index_[S::kOwnKeys], in_block_[S::kOwnKeys], block_[S::kOwnKeys];
  uint4 k_vectors_[S::kVectors];
  uint4 v_vectors_[S::kVectors];
};

}  // namespace paged_attention

#define PAGED_ATTENTION_KERNEL(dim, tiles, name, Format)                                      \
  SM70_KERNEL((paged_attention::threads_for(dim, tiles), paged_attention::blocks_for(tiles)), \
              paged_attention_d##dim##_m##tiles##_##name, PagedAttentionArgs args) {          \
    SM70_DYNAMIC_SHARED(shared);                                                              \
    paged_attention::Kernel<dim, tiles, Format>(args, shared).run();                          \
  }

#define PAGED_ATTENTION_KERNELS(dim, tiles)                      \
  PAGED_ATTENTION_KERNEL(dim, tiles, f16, paged_attention::Half) \
  PAGED_ATTENTION_KERNEL(dim, tiles, fp8, paged_attention::Fp8)

#endif  // SM70_CUDA_PAGED_ATTENTION_CUH_
