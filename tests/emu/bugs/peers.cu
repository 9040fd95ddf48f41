// An all-reduce over devices by flags and slots in each other's memory: correct (BUG 0), and with
// one mistake each.
enum { RANKS = 8, N = 256 };
enum { RIGHT, STALE_FLAG, NO_RELEASE, DEVICE_SCOPE, ARRIVAL_ORDER, EARLY_READ, ONE_SLOT, DEVICE_WAIT, LONG, LAST_UNHEARD };
struct Args { int rank, ranks; unsigned round; unsigned pieces; unsigned *flag[RANKS]; float *slot[RANKS]; float *x, *y; };

static __device__ float *
slot_of(const Args &a, unsigned round, int of, int from)
{
	return a.slot[of] + ((BUG == ONE_SLOT ? 0 : round & 1) * RANKS + from) * N;
}

struct S { int order[RANKS], n; };

static __device__ void
tell(const Args &a, S &s, unsigned number)
{
	const int t = threadIdx.x;

	if (t == 0)
		s.n = 0;
	__syncthreads();
	if (t < a.ranks) {
		unsigned *to = a.flag[t] + a.rank;
		if (BUG == NO_RELEASE)
			st_relaxed_sys(to, number);
		else if (BUG == DEVICE_SCOPE)
			st_release_gpu(to, number); // DEVICE_SCOPE
		else
			st_release_sys(to, number);
	}
}

static __device__ void
hear(const Args &a, S &s, unsigned number)
{
	const int t = threadIdx.x;

	if (BUG == ARRIVAL_ORDER) {
		if (t == 0)
			for (unsigned seen = 0; s.n < a.ranks;)
				for (int k = 0; k < a.ranks; k++)
					if (!(seen >> k & 1) && (int)(ld_acquire_sys(a.flag[a.rank] + k) - number) >= 0) {
						seen |= 1u << k;
						s.order[s.n++] = k;
					}
	} else if (t < a.ranks) {
		if (BUG == DEVICE_WAIT)
			while ((int)(ld_acquire_gpu(a.flag[a.rank] + t) - number) < 0) // DEVICE_WAIT
				;
		while ((int)(ld_acquire_sys(a.flag[a.rank] + t) - number) < 0) // SKIPPED
			;
	}
	__syncthreads();
}

/* One round: sends x to all ranks and adds what has arrived to y. */
static __device__ void
piece(const Args &a, S &s, unsigned round, const float *x, bool last)
{
	const int t = threadIdx.x;
	const unsigned number = BUG == STALE_FLAG ? 1 : round;

	for (int k = 0; k < a.ranks; k++)
		slot_of(a, round, k, a.rank)[t] = x[t]; // ONE_SLOT LAST_UNHEARD
	tell(a, s, number);
	if (BUG == LAST_UNHEARD && last) // no wait, although the next launch relies on it
		return;
	float early = BUG == EARLY_READ ? slot_of(a, round, a.rank, 0)[t] : 0; // EARLY_READ
	hear(a, s, number);
	float v = 0;
	for (int k = 0; k < a.ranks; k++) {
		const int from = BUG == ARRIVAL_ORDER ? s.order[k] : k;
		v += BUG == EARLY_READ && k == 0 ? early : slot_of(a, round, a.rank, from)[t]; // STALE_FLAG NO_RELEASE
	}
	a.y[t] += v;
}

extern "C" __global__ void
sum(Args a)
{
	SHARED(S, s);

	for (unsigned i = 0; i < a.pieces; i++)
		piece(a, s, a.round + i, a.x + i * N, a.pieces > 1 && i + 1 == a.pieces);
}

/* The same all-reduce two-shot, with one round of flags each: each rank adds its slice of x, then
 * sends the sum to all. */
extern "C" __global__ void
two(Args a)
{
	SHARED(S, s);
	const int t = threadIdx.x, each = N / a.ranks, slice = t / each;

	for (unsigned i = 0; i < a.pieces; i++) {
		const unsigned terms = 2 * (a.round + i) - 1, sums = terms + 1;
		slot_of(a, terms, slice, a.rank)[t % each] = a.x[i * N + t];
		tell(a, s, BUG == STALE_FLAG ? 1 : terms);
		hear(a, s, BUG == STALE_FLAG ? 1 : terms);
		if (t < each) {
			float v = 0;
			for (int k = 0; k < a.ranks; k++)
				v += slot_of(a, terms, a.rank, BUG == ARRIVAL_ORDER ? s.order[k] : k)[t]; // STALE_FLAG NO_RELEASE
			for (int k = 0; k < a.ranks; k++)
				slot_of(a, sums, k, a.rank)[t] = v; // ONE_SLOT
		}
		float early = BUG == EARLY_READ ? slot_of(a, sums, a.rank, slice)[t % each] : 0; // EARLY_READ
		tell(a, s, BUG == STALE_FLAG ? 1 : sums);
		hear(a, s, BUG == STALE_FLAG ? 1 : sums);
		a.y[t] += BUG == EARLY_READ ? early : slot_of(a, sums, a.rank, slice)[t % each];
	}
}
