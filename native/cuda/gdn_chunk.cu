// The delta rule in chunks of 64 tokens, FP32. With b the running sum of the log decays inside a chunk and D_ij =
// exp(b_i - b_j), only ever for i >= j:
//   A = strict lower of beta_i (k_i . k_j) D_ij,  T = (I + A)^-1,  W = T diag(beta e^b) K,  U = T diag(beta) V
//   P = lower of (q_i . k_j) D_ij
// are made for all chunks at once by the first kernel. The second goes through the chunks of a sequence in order:
//   V' = U - W H,  out = diag(e^b) Q H + P V',  H <- e^{b_last} H + (diag(e^{b_last - b}) K)^T V'
// where H = S^T, a block of whose columns each block of threads owns.
#include "gdn.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxDim = 128;
constexpr int kStride = kMaxDim + 4;  // of a row of q, k or W in shared memory, in floats
constexpr int kSquare = kGdnChunk + 1;
constexpr int kColumns = 16;  // of H in one block of the second kernel
constexpr int kColumnStride = kColumns + 4;

// Shared layout of the first kernel, in floats. T lies over q, which is done with by then.
constexpr int kKeys = 0;
constexpr int kQueries = kKeys + kGdnChunk * kStride;
constexpr int kA = kQueries + kGdnChunk * kStride;
constexpr int kRunning = kA + kGdnChunk * kSquare;
constexpr int kBeta = kRunning + kGdnChunk;
constexpr int kPrepareFloats = kBeta + kGdnChunk;
static_assert(kGdnChunk * kSquare <= kGdnChunk * kStride, "T lies over the queries");
static_assert(kPrepareFloats * 4 <= 96 * 1024, "SM70 has 96 KiB");

// Shared layout of the second.
constexpr int kRowsAt = 0;                                // W, then q, then k
constexpr int kPAt = kRowsAt + kGdnChunk * kStride;       // P
constexpr int kHAt = kPAt + kGdnChunk * (kGdnChunk + 4);  // H, [dk][columns]
constexpr int kVAt = kHAt + kMaxDim * kColumnStride;      // V', [64][columns]
constexpr int kScanFloats = kVAt + kGdnChunk * kColumnStride;
static_assert(kScanFloats * 4 <= 96 * 1024, "SM70 has 96 KiB");

// The chunk with index `wanted` over all sequences.
struct Chunk {
  int64_t sequence = -1;
  int64_t begin = 0;  // its first token
  int size = 0;
  __device__ Chunk(const GdnArgs& args, int64_t wanted) {
    for (int64_t b = 0; b < args.batch; ++b) {
      const gdn::Range range(args.query_start, b, args.tokens);
      const int64_t chunks = (range.size() + kGdnChunk - 1) / kGdnChunk;
      if (wanted < chunks) {
        sequence = b;
        begin = range.begin + wanted * kGdnChunk;
        size = static_cast<int>(min(range.end - begin, int64_t{kGdnChunk}));
        return;
      }
      wanted -= chunks;
    }
  }
};

// Row `row` of a chunk (zero past its end) into shared memory, L2-normed; returns the factor to every lane.
__device__ float load_row(const __half* from, int dim, bool live, float factor, float* to) {
  const int lane = threadIdx.x % kWarp;
  float value[kMaxDim / kWarp];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxDim / kWarp; ++i) {
    const int d = lane + i * kWarp;
    value[i] = live && d < dim ? __half2float(from[d]) : 0.0f;
    sum += value[i] * value[i];
  }
  const float scale = factor / sqrtf(warp_sum(sum) + gdn::kNormEps);
#pragma unroll
  for (int i = 0; i < kMaxDim / kWarp; ++i) to[lane + i * kWarp] = value[i] * scale;
  return scale;
}

__device__ float dot(const float* a, const float* b) {
  float sum = 0.0f;
#pragma unroll 8
  for (int d = 0; d < kMaxDim; d += 4) {
    const float4 x = *reinterpret_cast<const float4*>(a + d);
    const float4 y = *reinterpret_cast<const float4*>(b + d);
    sum += x.x * y.x;
    sum += x.y * y.y;
    sum += x.z * y.z;
    sum += x.w * y.w;
  }
  return sum;
}

// T = (I + A)^-1 by forward substitution; four neighbouring lanes share a column.
__device__ void invert(const float* a, float* t) {
  const int column = threadIdx.x / 4, part = threadIdx.x % 4;
  for (int i = 0; i < kGdnChunk; ++i) {
    float sum = 0.0f;
    for (int m = column + part; m < i; m += 4) sum += a[i * kSquare + m] * t[m * kSquare + column];
    sum += __shfl_xor_sync(kFullMask, sum, 1);
    sum += __shfl_xor_sync(kFullMask, sum, 2);
    if (part == 0) t[i * kSquare + column] = i < column ? 0.0f : i == column ? 1.0f : -sum;
    __syncwarp();
  }
}

}  // namespace

// Grid: chunks, value heads.
SM70_KERNEL((kThreads), gdn_chunk_prepare, GdnArgs args) {
  SM70_DYNAMIC_SHARED(bytes);
  float* shared = reinterpret_cast<float*>(bytes);
  float* keys = shared + kKeys;
  float* queries = shared + kQueries;
  float* a = shared + kA;
  float* running = shared + kRunning;
  float* beta = shared + kBeta;
  float* t = queries;
  const Chunk chunk(args, blockIdx.x);
  if (chunk.sequence < 0) return;
  const int head = blockIdx.y;
  const int heads = static_cast<int>(args.value_heads);
  const int64_t key_head = head / (args.value_heads / args.key_heads);
  const int dk = static_cast<int>(args.key_dim), dv = static_cast<int>(args.value_dim);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * heads + head;  // of this chunk and head
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;

  if (head == 0 && static_cast<int>(threadIdx.x) < chunk.size) {
    const gdn::Range range(args.query_start, chunk.sequence, args.tokens);
    const int64_t t = chunk.begin - range.begin + threadIdx.x;
    if (t + 1 < range.size()) gdn::refuse_slot(args.slots, range, t, args.fault, chunk.sequence);
  }

  // Rows past the end have beta 0 and decay 1: they change nothing.
  if (threadIdx.x < kGdnChunk) {
    const bool live = static_cast<int>(threadIdx.x) < chunk.size;
    const int64_t from = (chunk.begin + threadIdx.x) * heads + head;
    running[threadIdx.x] = live ? static_cast<const float*>(args.log_decay)[from] : 0.0f;
    beta[threadIdx.x] = live ? static_cast<const float*>(args.beta)[from] : 0.0f;
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < kGdnChunk; ++i) running[i] += running[i - 1];
  __syncthreads();

  const float last = running[kGdnChunk - 1];
  const float query_factor = 1.0f / sqrtf(static_cast<float>(dk));
  float* factors = static_cast<float*>(args.factors) + at * kGdnChunk * 2;
  for (int row = warp; row < kGdnChunk; row += kWarps) {
    const int64_t token = chunk.begin + row;
    const bool live = row < chunk.size;
    const __half* q = static_cast<const __half*>(args.q) + token * args.q_token_stride + key_head * dk;
    const __half* k = static_cast<const __half*>(args.k) + token * args.k_token_stride + key_head * dk;
    const float q_scale = load_row(q, dk, live, query_factor, queries + row * kStride);
    const float k_scale = load_row(k, dk, live, 1.0f, keys + row * kStride);
    if (lane == 0) {
      factors[row * 2] = q_scale * expf(running[row]);
      factors[row * 2 + 1] = k_scale * expf(last - running[row]);
    }
  }
  if (threadIdx.x == 0) static_cast<float*>(args.decays)[at] = expf(last);
  __syncthreads();

  float* p = static_cast<float*>(args.p) + at * kGdnChunk * kGdnChunk;
  for (int ij = threadIdx.x; ij < kGdnChunk * kGdnChunk; ij += kThreads) {
    const int i = ij / kGdnChunk, j = ij % kGdnChunk;
    float for_a = 0.0f, for_p = 0.0f;
    if (j <= i) {
      const float decay = expf(running[i] - running[j]);
      for_p = dot(queries + i * kStride, keys + j * kStride) * decay;
      if (j < i) for_a = beta[i] * dot(keys + i * kStride, keys + j * kStride) * decay;
    }
    p[ij] = for_p;
    a[i * kSquare + j] = for_a;
  }
  __syncthreads();
  invert(a, t);
  __syncthreads();

  float* w = static_cast<float*>(args.w) + at * kGdnChunk * dk;
  for (int id = threadIdx.x; id < kGdnChunk * dk; id += kThreads) {
    const int i = id / dk, d = id % dk;
    float sum = 0.0f;
    for (int j = 0; j <= i; ++j) sum += t[i * kSquare + j] * (beta[j] * expf(running[j])) * keys[j * kStride + d];
    w[id] = sum;
  }
  float* u = static_cast<float*>(args.u) + at * kGdnChunk * dv;
  const __half* v = static_cast<const __half*>(args.v) + head * dv;
  for (int id = threadIdx.x; id < kGdnChunk * dv; id += kThreads) {
    const int i = id / dv, d = id % dv;
    float sum = 0.0f;
    for (int j = 0; j <= i && j < chunk.size; ++j)
      sum += t[i * kSquare + j] * beta[j] * __half2float(v[(chunk.begin + j) * args.v_token_stride + d]);
    u[id] = sum;
  }
}

namespace {

// rows of W, or of q or k with their factors, into shared memory; zero past the end and past dk.
__device__ void load_w(const float* w, int dk, float* to) {
  for (int at = threadIdx.x; at < kGdnChunk * kMaxDim; at += kThreads) {
    const int i = at / kMaxDim, d = at % kMaxDim;
    to[i * kStride + d] = d < dk ? w[i * dk + d] : 0.0f;
  }
}
__device__ void load_scaled(const __half* rows, int64_t stride, int size, int dk, const float* factors, float* to) {
  for (int at = threadIdx.x; at < kGdnChunk * kMaxDim; at += kThreads) {
    const int i = at / kMaxDim, d = at % kMaxDim;
    to[i * kStride + d] = i < size && d < dk ? __half2float(rows[i * stride + d]) * factors[2 * i] : 0.0f;
  }
}

// Four rows x one column of rows[64][dk] . h[dk][columns], this thread's share.
__device__ void times_h(const float* rows, const float* h, int row, int column, float (&sum)[4]) {
#pragma unroll 4
  for (int d = 0; d < kMaxDim; d += 4) {
    const float h0 = h[d * kColumnStride + column], h1 = h[(d + 1) * kColumnStride + column];
    const float h2 = h[(d + 2) * kColumnStride + column], h3 = h[(d + 3) * kColumnStride + column];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(rows + (row + r) * kStride + d);
      sum[r] += x.x * h0;
      sum[r] += x.y * h1;
      sum[r] += x.z * h2;
      sum[r] += x.w * h3;
    }
  }
}

}  // namespace

// Grid: blocks of 16 columns of H (rows of the state), value heads, sequences.
SM70_KERNEL((kThreads), gdn_chunk_scan, GdnArgs args) {
  SM70_DYNAMIC_SHARED(bytes);
  float* shared = reinterpret_cast<float*>(bytes);
  float* rows = shared + kRowsAt;
  float* p_shared = shared + kPAt;
  float* h = shared + kHAt;
  float* v_new = shared + kVAt;
  constexpr int kPStride = kGdnChunk + 4;
  const int first_column = blockIdx.x * kColumns;
  const int head = blockIdx.y;
  const int heads = static_cast<int>(args.value_heads);
  const int64_t key_head = head / (args.value_heads / args.key_heads);
  const int64_t sequence = blockIdx.z;
  const int dk = static_cast<int>(args.key_dim), dv = static_cast<int>(args.value_dim);
  const gdn::Range range(args.query_start, sequence, args.tokens);
  if (range.size() == 0) return;
  const int64_t initial = gdn::checked_slot(args.initial_slots, sequence, args.states, args.fault, sequence, -1);
  const int64_t kept =
      gdn::checked_slot(args.slots, range.end - 1, args.states, args.fault, sequence, range.size() - 1);
  int64_t chunk = 0;
  for (int64_t b = 0; b < sequence; ++b)
    chunk += (gdn::Range(args.query_start, b, args.tokens).size() + kGdnChunk - 1) / kGdnChunk;

  const auto state_at = [&](int64_t slot, int column, int d) {
    return static_cast<float*>(args.state) +
           ((slot * heads + head) * dv + first_column + column) * static_cast<int64_t>(dk) + d;
  };
  for (int at = threadIdx.x; at < kMaxDim * kColumns; at += kThreads) {
    const int column = at / kMaxDim, d = at % kMaxDim;
    const bool live = initial >= 0 && d < dk && first_column + column < dv;
    h[d * kColumnStride + column] = live ? *state_at(initial, column, d) : 0.0f;
  }

  // A thread's share of a [64][16] product: four rows of one column.
  const int column = threadIdx.x % kColumns;
  const int row = threadIdx.x / kColumns * 4;
  const bool live_column = first_column + column < dv;
  for (int64_t begin = range.begin; begin < range.end; begin += kGdnChunk, ++chunk) {
    const int size = static_cast<int>(min(range.end - begin, int64_t{kGdnChunk}));
    const int64_t at = chunk * heads + head;
    const float* factors = static_cast<const float*>(args.factors) + at * kGdnChunk * 2;
    __syncthreads();  // H is whole; the last chunk's rows are free
    load_w(static_cast<const float*>(args.w) + at * kGdnChunk * dk, dk, rows);
    const float* p = static_cast<const float*>(args.p) + at * kGdnChunk * kGdnChunk;
    for (int ij = threadIdx.x; ij < kGdnChunk * kGdnChunk; ij += kThreads)
      p_shared[ij / kGdnChunk * kPStride + ij % kGdnChunk] = p[ij];
    __syncthreads();
    float sum[4] = {};
    times_h(rows, h, row, column, sum);
    const float* u = static_cast<const float*>(args.u) + at * kGdnChunk * dv + first_column + column;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      v_new[(row + r) * kColumnStride + column] = live_column ? u[(row + r) * dv] - sum[r] : 0.0f;
    __syncthreads();

    const __half* q = static_cast<const __half*>(args.q) + begin * args.q_token_stride + key_head * dk;
    load_scaled(q, args.q_token_stride, size, dk, factors, rows);
    __syncthreads();
    float result[4] = {};
    times_h(rows, h, row, column, result);
    for (int j = 0; j < row + 4; ++j) {
      const float v = v_new[j * kColumnStride + column];
#pragma unroll
      for (int r = 0; r < 4; ++r) result[r] += p_shared[(row + r) * kPStride + j] * v;  // P is zero above its diagonal
    }
    __half* out = static_cast<__half*>(args.out) + begin * args.out_token_stride + head * dv + first_column + column;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (live_column && row + r < size)
        out[(row + r) * args.out_token_stride] = __float2half_rn(initial >= 0 ? result[r] : 0.0f);
    __syncthreads();

    const __half* k = static_cast<const __half*>(args.k) + begin * args.k_token_stride + key_head * dk;
    load_scaled(k, args.k_token_stride, size, dk, factors + 1, rows);
    __syncthreads();
    // H: eight elements a thread, dk of one column apart.
    const float decay = static_cast<const float*>(args.decays)[at];
    for (int d = threadIdx.x / kColumns; d < kMaxDim; d += kThreads / kColumns) {
      float total = decay * h[d * kColumnStride + column];
#pragma unroll 8
      for (int i = 0; i < kGdnChunk; ++i) total += rows[i * kStride + d] * v_new[i * kColumnStride + column];
      h[d * kColumnStride + column] = total;
    }
  }
  __syncthreads();
  if (initial < 0 || kept < 0) return;
  for (int at = threadIdx.x; at < kMaxDim * kColumns; at += kThreads) {
    const int own = at / kMaxDim, d = at % kMaxDim;
    if (d < dk && first_column + own < dv) *state_at(kept, own, d) = h[d * kColumnStride + own];
  }
}
