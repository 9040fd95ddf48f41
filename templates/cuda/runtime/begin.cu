/* First kernel of a step: builds the step's arrays from the host's note, inserts the tokens that
 * the previous step sampled, and computes RoPE angles. templates/cuda/sampling/sampler_state.h
 * defines how notes map to arrays. One CTA per row. */
#include "cuda/ptx/ptx.h"
#include "cuda/sampling/sampler_state.h"

enum { WORDS = sizeof(llmc_note_row) / sizeof(int), PAGE = 32 };

struct begin_row {
	int number, word[WORDS];
};

/* Computes the angles of a row. They are computed in double, so that position 131071 keeps its
 * precision. */
static __device__ void
angles(const llmc_state &p, int r, int slot, int rope_pos, int pos2, int rope_y, int rope_x)
{
	for (int i = 0; i < p.n_rope; i++) {
		const llmc_rope_table t = p.rope[i];
		const int half = t.dims / 2;
		const float *freq = p.freq + (long long)slot * p.n_freq + t.freq_at;
		const double factor = p.factor[(long long)slot * p.n_rope + i];
		const int time = t.axis ? pos2 : rope_pos;
		float *to = t.dst + (long long)r * t.dims;
		for (int k = threadIdx.x; k < half; k += blockDim.x) {
			int axis = 0;
			if (t.sections == 1)
				axis = k < t.section[0]                  ? 0
				       : k < t.section[0] + t.section[1] ? 1
				                                         : 2;
			else if (t.sections == 2 && k % 3 && k < 3 * t.section[k % 3])
				axis = k % 3;
			const int pos = axis == 0 ? time : axis == 1 ? rope_y : rope_x;
			const double angle = (double)pos * (double)freq[k];
			to[k] = (float)(cos(angle) * factor);
			to[half + k] = (float)(sin(angle) * factor);
		}
	}
}

/* Sets up a decode row: row r of the note is row r and sequence r of the step. */
static __device__ void
decode_row(const llmc_state &p, const llmc_note_row &w, int r, int n)
{
	const int *table = p.tables + (long long)w.slot * p.block_stride;
	int *to = p.s_block_table + (long long)r * p.block_stride;

	for (int j = w.table_from + (int)threadIdx.x; j <= w.pos / PAGE; j += blockDim.x)
		if (j != w.page_at) {
			to[j] = table[j];
			if (p.window_at > 0)
				to[p.window_at + j] = table[p.window_at + j];
		}
	if (threadIdx.x)
		return;
	if (w.page_at >= 0) {
		to[w.page_at] = w.page;
		p.tables[(long long)w.slot * p.block_stride + w.page_at] = w.page;
		if (p.window_at > 0) {
			to[p.window_at + w.page_at] = w.window;
			p.tables[(long long)w.slot * p.block_stride + p.window_at + w.page_at] =
			    w.window;
		}
	}
	p.s_tok[r] = w.tok < 0 ? p.slot[w.slot].last : w.tok;
	p.s_pos[r] = w.pos;
	p.s_pos2[r] = w.pos2;
	p.s_seq_of[r] = r;
	p.s_q_start[r] = r;
	if (r == n - 1)
		p.s_q_start[n] = n;
	p.s_kv_len[r] = w.pos + 1;
	p.s_prefix_len[r] = w.prefix_len;
	p.slot_of[r] = w.slot;
	if (w.out_at >= 0)
		p.s_out_row[w.out_at] = r;
}

extern "C" __global__ void __launch_bounds__(128, 1)
llmc_begin(const llmc_state p)
{
	SHARED(begin_row, s);
	const int r = blockIdx.x;

	PDL_WAIT();
	PDL_LAUNCH();
	if ((p.note || r == 0) && threadIdx.x == 0)
		s.number = (int)ld_acquire_sys(p.count);
	__syncthreads();
	if (r == 0 && threadIdx.x == 0)
		*p.now = (unsigned)s.number;
	if (p.note) { /* pinned host memory, read without caching */
		const int *from =
		    (const int *)((const char *)p.note +
		                  (unsigned)s.number % LLMC_RING * (long long)p.note_stride) +
		    (long long)r * WORDS;
		if (threadIdx.x < WORDS)
			s.word[threadIdx.x] = ld_relaxed_sys(from + threadIdx.x);
		__syncthreads();
		if (s.word[0] >= 0) {
			const int n = s.word[0];
			const llmc_note_row w = { n,          s.word[1],  s.word[2],  s.word[3],
				                  s.word[4],  s.word[5],  s.word[6],  s.word[7],
				                  s.word[8],  s.word[9],  s.word[10], s.word[11],
				                  s.word[12], s.word[13], s.word[14] };
			if (r == 0 && threadIdx.x == 0) {
				p.s_n[0] = p.s_n[1] = p.s_n[2] = n;
				p.s_n[3] = w.n_out;
				if (n == 0)
					p.s_q_start[0] = 0;
			}
			if (r < n) {
				decode_row(p, w, r, n);
				angles(p, r, w.slot, w.rope_pos, w.pos2, w.rope_y, w.rope_x);
			}
			return;
		}
	}
	if (r < p.s_n[0]) {
		if (threadIdx.x == 0 && p.s_tok[r] < 0)
			p.s_tok[r] = p.slot[-1 - p.s_tok[r]].last;
		angles(p, r, p.slot_of[p.s_seq_of[r]], p.rope_pos[r], p.s_pos2[r], p.rope_y[r],
		       p.rope_x[r]);
	}
}
