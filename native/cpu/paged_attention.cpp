// Attention over a paged cache: decode, verification and prefill are the same op with more or fewer query rows.
//
// A chunk of work is (sequence, KV head, some query rows) over all partitions of keys, or over one partition where
// there are too few chunks to share: then partial results wait in scratch and are merged in the same ascending order.
// A caller may ask for partitions of another size: a larger one gathers tiles of kPartition keys first.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/paged_cache.h"
#include "cpu/scratch.h"
#include "op.h"
#include "pool.h"

namespace {

using sm70::kPartition;

struct PagedAttentionArgs {
  const float* q;
  void* k_cache;
  void* v_cache;
  const int32_t* block_table;
  const int32_t* seq_lens;
  const int32_t* query_start;
  float* out;
  int64_t t, sequences, max_blocks, table_stride, q_heads, kv_heads, head_dim, kv_code, num_blocks, block_size;
  int64_t k_strides[3], v_strides[3];
  int64_t causal, left, right;
  int64_t partition;  // keys of a partition, a multiple of 16; 0: kPartition
  double scale;       // of the scores, k_scale included
  double v_scale;     // of the output
};

// Query rows (times heads of a group) that share the transposed keys of a chunk.
constexpr int64_t kChunkRows = 48;
// Fewer chunks than this are too coarse to share among threads, and are split by partition.
constexpr int64_t kEnoughChunks = 16;

struct Range {
  int64_t begin, end;
};

// Keys that the query at `position` of a sequence sees.
Range visible(const PagedAttentionArgs& a, int64_t position, int64_t length) {
  Range keys{0, a.causal ? position + 1 : length};
  if (a.left >= 0) keys.begin = std::max<int64_t>(0, position - a.left);
  if (a.right >= 0) keys.end = std::min(keys.end, position + a.right + 1);
  return keys;
}

int check(const PagedAttentionArgs& a) {
  const auto ll = [](int64_t v) { return static_cast<long long>(v); };
  if (a.query_start[0] != 0 || a.query_start[a.sequences] != a.t)
    return sm70::fail(sm70::kBadValue, "query_start: runs from %d to %d, need 0 to the %lld rows of q",
                      a.query_start[0], a.query_start[a.sequences], ll(a.t));
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t rows = static_cast<int64_t>(a.query_start[s + 1]) - a.query_start[s], length = a.seq_lens[s];
    if (rows < 0)
      return sm70::fail(sm70::kBadValue, "query_start[%lld] is %d after %d, need ascending numbers", ll(s + 1),
                        a.query_start[s + 1], a.query_start[s]);
    if (length < 0 || (length > 0 && length < rows) || length > a.max_blocks * a.block_size)
      return sm70::fail(
          sm70::kBadValue,
          "seq_lens[%lld] is %lld, allowed 0 (padding) or %lld..%lld: its query rows up to %lld blocks of %lld", ll(s),
          ll(length), ll(rows), ll(a.max_blocks * a.block_size), ll(a.max_blocks), ll(a.block_size));
    if (rows == 0 || length == 0) continue;
    const int64_t first = visible(a, length - rows, length).begin / a.block_size;
    for (int64_t b = first; b * a.block_size < length; ++b) {
      const int32_t block = a.block_table[s * a.table_stride + b];
      if (block < 0 || block >= a.num_blocks)
        return sm70::fail(sm70::kBadValue, "block_table[%lld, %lld] is %d, allowed 0..%lld: the cache has %lld blocks",
                          ll(s), ll(b), block, ll(a.num_blocks - 1), ll(a.num_blocks));
    }
  }
  return sm70::kOk;
}

// Some query rows of one KV head of one sequence; rows r of the tile are (query r / group, head r % group).
struct Work {
  int64_t sequence, kv_head;
  int64_t first_query, queries;    // rows of q, counted over the batch
  int64_t first_position, length;  // of the first query; of the sequence
  Range keys;                      // seen by any of the rows

  int64_t first_partition(int64_t size) const { return keys.begin / size; }
  int64_t partitions(int64_t size) const {
    return keys.end > keys.begin ? (keys.end - 1) / size + 1 - first_partition(size) : 0;
  }
};

int64_t partition_size(const PagedAttentionArgs& a) { return a.partition > 0 ? a.partition : kPartition; }

std::vector<Work> plan(const PagedAttentionArgs& a) {
  const int64_t group = a.q_heads / a.kv_heads;
  const int64_t queries = std::max<int64_t>(1, kChunkRows / group);
  std::vector<Work> works;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t first = a.query_start[s], count = a.query_start[s + 1] - first, length = a.seq_lens[s];
    for (int64_t head = 0; head < a.kv_heads; ++head)
      for (int64_t q = 0; q < count; q += queries) {
        const int64_t here = std::min(queries, count - q), position = length - count + q;
        Range keys{0, 0};
        if (length > 0) keys = {visible(a, position, length).begin, visible(a, position + here - 1, length).end};
        works.push_back({s, head, first + q, here, position, length, keys});
      }
  }
  return works;
}

// Buffers of one thread for the tile it works on, sized for the op's largest tile.
struct Buffers {
  float *q, *scores, *room, *columns, *zeros, *maxima, *totals, *out, *sums, *part_sums;
  const void** keys;
  const void** values;
  int64_t *begin, *end;
  sm70::AttentionRow *gathered, *parts;

  bool take(int64_t rows, int64_t head_dim) {
    static thread_local sm70::Scratch scratch;
    const int64_t floats = rows * (4 * head_dim + kPartition + 2) + 33 * head_dim;
    constexpr int64_t kBuffers = 16;  // each starts on a cache line
    char* at = scratch.take(
        static_cast<std::size_t>(floats * 4 + 2 * kPartition * 8 + rows * (2 * 8 + 2 * 16) + kBuffers * 64));
    if (at == nullptr) return false;
    const auto cut = [&at](auto** pointer, int64_t count) {
      *pointer = reinterpret_cast<std::remove_reference_t<decltype(*pointer)>>(at);
      at += (count * static_cast<int64_t>(sizeof(**pointer)) + 63) / 64 * 64;
    };
    cut(&q, rows * head_dim);
    cut(&scores, rows * kPartition);
    cut(&room, 16 * head_dim);
    cut(&columns, 16 * head_dim);
    cut(&zeros, head_dim);
    cut(&maxima, rows);
    cut(&totals, rows);
    cut(&out, rows * head_dim);
    cut(&sums, rows * head_dim);
    cut(&part_sums, rows * head_dim);
    cut(&keys, kPartition);
    cut(&values, kPartition);
    cut(&begin, rows);
    cut(&end, rows);
    cut(&gathered, rows);
    cut(&parts, rows);
    std::memset(zeros, 0, static_cast<std::size_t>(head_dim) * 4);
    return true;
  }
};

// The tile of `work` before any partition: queries multiplied by the scale.
sm70::AttentionTile open_tile(const PagedAttentionArgs& a, const Work& work, const Buffers& b) {
  const int64_t group = a.q_heads / a.kv_heads, rows = work.queries * group;
  const float scale = static_cast<float>(a.scale);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from =
        a.q + ((work.first_query + r / group) * a.q_heads + work.kv_head * group + r % group) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; ++d) b.q[r * a.head_dim + d] = from[d] * scale;
  }
  return {b.q,   rows,     a.head_dim, a.kv_code, b.keys,  b.values, 0,        0,    b.begin,
          b.end, b.scores, b.room,     b.columns, b.zeros, b.maxima, b.totals, b.out};
}

// The keys from `start` on, `count` of them and at most kPartition.
void attend(const PagedAttentionArgs& a, const Work& work, int64_t start, int64_t count, const Buffers& b,
            sm70::AttentionTile* tile) {
  const int64_t group = a.q_heads / a.kv_heads;
  tile->first_key = std::max(work.keys.begin, start) - start;
  tile->last_key = std::min(work.keys.end, start + count) - start;
  for (int64_t r = 0; r < tile->rows; ++r) {
    const Range keys = visible(a, work.first_position + r / group, work.length);
    b.begin[r] = std::max(keys.begin - start, tile->first_key);
    b.end[r] = std::min(keys.end - start, tile->last_key);
  }
  const int64_t bytes = sm70::kv_element_bytes(a.kv_code);
  const sm70::PagedCache k{static_cast<char*>(a.k_cache), bytes, a.k_strides};
  const sm70::PagedCache v{static_cast<char*>(a.v_cache), bytes, a.v_strides};
  const int32_t* table = a.block_table + work.sequence * a.table_stride;
  int64_t block = (start + tile->first_key) / a.block_size, offset = (start + tile->first_key) % a.block_size;
  for (int64_t key = tile->first_key; key < tile->last_key; ++key) {
    b.keys[key] = k.row(table[block], offset, work.kv_head);
    b.values[key] = v.row(table[block], offset, work.kv_head);
    if (++offset == a.block_size) offset = 0, ++block;
  }
  sm70::kernels().attend_partition(*tile);
}

float* output_row(const PagedAttentionArgs& a, const Work& work, int64_t r) {
  const int64_t group = a.q_heads / a.kv_heads;
  return a.out + ((work.first_query + r / group) * a.q_heads + work.kv_head * group + r % group) * a.head_dim;
}

sm70::AttentionRow empty_row(float* sums, int64_t head_dim) {
  std::memset(sums, 0, static_cast<std::size_t>(head_dim) * 4);
  return {-INFINITY, 0.0f, sums};
}

void merge_row(float maximum, float total, const float* out, int64_t head_dim, sm70::AttentionRow* row) {
  sm70::kernels().merge_partition(maximum, total, out, head_dim, row);
}

// A partition larger than a tile, tile by tile into `parts`.
void gather_tiles(const PagedAttentionArgs& a, const Work& work, int64_t partition, const Buffers& b,
                  sm70::AttentionTile* tile, sm70::AttentionRow* parts) {
  const int64_t size = partition_size(a), end = std::min(work.keys.end, (partition + 1) * size);
  int64_t start = partition * size;
  while (start + kPartition <= work.keys.begin) start += kPartition;
  for (; start < end; start += kPartition) {
    attend(a, work, start, std::min(kPartition, end - start), b, tile);
    for (int64_t r = 0; r < tile->rows; ++r)
      if (b.begin[r] < b.end[r]) merge_row(b.maxima[r], b.totals[r], b.out + r * a.head_dim, a.head_dim, &parts[r]);
  }
}

void write_row(const PagedAttentionArgs& a, const Work& work, int64_t r, const sm70::AttentionRow& row) {
  float* const out = output_row(a, work, r);
  sm70::kernels().finish_row(row, a.head_dim, out);
  const float v_scale = static_cast<float>(a.v_scale);
  if (v_scale != 1.0f)
    for (int64_t d = 0; d < a.head_dim; ++d) out[d] *= v_scale;
}

// All partitions of the work, merged as they come.
void run_whole(const PagedAttentionArgs& a, const Work& work, const Buffers& b) {
  sm70::AttentionTile tile = open_tile(a, work, b);
  const int64_t size = partition_size(a), first = work.first_partition(size);
  for (int64_t r = 0; r < tile.rows; ++r) b.gathered[r] = empty_row(b.sums + r * a.head_dim, a.head_dim);
  for (int64_t p = first; p < first + work.partitions(size); ++p) {
    if (size <= kPartition) {
      attend(a, work, p * size, size, b, &tile);
      for (int64_t r = 0; r < tile.rows; ++r)
        if (b.begin[r] < b.end[r])
          merge_row(b.maxima[r], b.totals[r], b.out + r * a.head_dim, a.head_dim, &b.gathered[r]);
      continue;
    }
    for (int64_t r = 0; r < tile.rows; ++r) b.parts[r] = empty_row(b.part_sums + r * a.head_dim, a.head_dim);
    gather_tiles(a, work, p, b, &tile, b.parts);
    for (int64_t r = 0; r < tile.rows; ++r)
      if (b.parts[r].total > 0.0f)
        merge_row(b.parts[r].maximum, b.parts[r].total, b.parts[r].out, a.head_dim, &b.gathered[r]);
  }
  for (int64_t r = 0; r < tile.rows; ++r) write_row(a, work, r, b.gathered[r]);
}

// What one partition gave the rows of a work: [rows] maxima, [rows] totals, [rows, head_dim] sums. A row that saw no
// key has total 0.
struct Partial {
  int64_t work, partition;
  float* at;
};

void run_partition(const PagedAttentionArgs& a, const Work& work, const Partial& partial, const Buffers& b) {
  sm70::AttentionTile tile = open_tile(a, work, b);
  float *const maxima = partial.at, *const totals = maxima + tile.rows, *const sums = totals + tile.rows;
  const int64_t size = partition_size(a);
  if (size <= kPartition) {
    tile.maxima = maxima;
    tile.totals = totals;
    tile.out = sums;
    attend(a, work, partial.partition * size, size, b, &tile);
    for (int64_t r = 0; r < tile.rows; ++r)
      if (b.begin[r] >= b.end[r]) totals[r] = 0.0f;
    return;
  }
  for (int64_t r = 0; r < tile.rows; ++r) b.parts[r] = empty_row(sums + r * a.head_dim, a.head_dim);
  gather_tiles(a, work, partial.partition, b, &tile, b.parts);
  for (int64_t r = 0; r < tile.rows; ++r) {
    maxima[r] = b.parts[r].maximum;
    totals[r] = b.parts[r].total;
  }
}

void merge_partials(const PagedAttentionArgs& a, const Work& work, const Partial* first, int64_t count, float* sums) {
  const int64_t rows = work.queries * (a.q_heads / a.kv_heads);
  for (int64_t r = 0; r < rows; ++r) {
    sm70::AttentionRow row = empty_row(sums, a.head_dim);
    for (int64_t p = 0; p < count; ++p) {
      const float* at = first[p].at;
      if (at[rows + r] != 0.0f) merge_row(at[r], at[rows + r], at + 2 * rows + r * a.head_dim, a.head_dim, &row);
    }
    write_row(a, work, r, row);
  }
}

int no_memory(int64_t floats) {
  return sm70::fail(sm70::kFailed, "paged_attention: no memory for %lld floats", static_cast<long long>(floats));
}

int run_split(const PagedAttentionArgs& a, const std::vector<Work>& works, int64_t tile_rows) {
  std::vector<Partial> partials;
  std::vector<int64_t> starts;
  int64_t floats = a.head_dim;
  const int64_t size = partition_size(a);
  for (std::size_t w = 0; w < works.size(); ++w) {
    starts.push_back(static_cast<int64_t>(partials.size()));
    for (int64_t p = 0; p < works[w].partitions(size); ++p)
      partials.push_back({static_cast<int64_t>(w), works[w].first_partition(size) + p, nullptr});
    floats += works[w].partitions(size) * works[w].queries * (a.q_heads / a.kv_heads) * (a.head_dim + 2);
  }
  starts.push_back(static_cast<int64_t>(partials.size()));
  static thread_local sm70::Scratch scratch;
  float* at = reinterpret_cast<float*>(scratch.take(static_cast<std::size_t>(floats) * 4));
  if (at == nullptr) return no_memory(floats);
  float* const sums = at;
  at += a.head_dim;
  for (Partial& partial : partials) {
    partial.at = at;
    at += works[partial.work].queries * (a.q_heads / a.kv_heads) * (a.head_dim + 2);
  }
  std::atomic<bool> memory{true};
  sm70::parallel_for(static_cast<int64_t>(partials.size()), [&](int64_t chunk) {
    Buffers buffers;
    if (buffers.take(tile_rows, a.head_dim))
      run_partition(a, works[partials[chunk].work], partials[chunk], buffers);
    else
      memory = false;
  });
  if (!memory) return no_memory(tile_rows * a.head_dim);
  for (std::size_t w = 0; w < works.size(); ++w)
    merge_partials(a, works[w], partials.data() + starts[w], starts[w + 1] - starts[w], sums);
  return sm70::kOk;
}

int run_chunks(const PagedAttentionArgs& a, const std::vector<Work>& works, int64_t tile_rows) {
  std::atomic<bool> memory{true};
  sm70::parallel_for(static_cast<int64_t>(works.size()), [&](int64_t chunk) {
    Buffers buffers;
    if (buffers.take(tile_rows, a.head_dim))
      run_whole(a, works[chunk], buffers);
    else
      memory = false;
  });
  return memory ? static_cast<int>(sm70::kOk) : no_memory(tile_rows * a.head_dim);
}

}  // namespace

SM70_OP(paged_attention_cpu, 3, PagedAttentionArgs) {
  const PagedAttentionArgs& a = *args;
  if (const int status = check(a)) return status;
  const std::vector<Work> works = plan(a);
  const int64_t group = a.q_heads / a.kv_heads;
  const int64_t tile_rows = std::max(group, kChunkRows / group * group);
  const bool coarse = static_cast<int64_t>(works.size()) < kEnoughChunks && sm70::thread_count() > 1;
  return coarse ? run_split(a, works, tile_rows) : run_chunks(a, works, tile_rows);
}
