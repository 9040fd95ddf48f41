/* llmc_fit_limits: chooses context and KV cache size by the free memory, and refuses limits that do
 * not fit. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/number.h"
#include "base/sized_struct.h"

enum {
	MIN_CONTEXT = 256,
	MIN_CHUNK = 32,  /* tokens per step of the smallest session */
	GPU_MARGIN = 32, /* 1 / GPU_MARGIN of a GPU's memory is left to the driver */
};

typedef struct MemoryFit {
	const llmc_model *m;
	int64_t weights; /* bytes of weights still to be allocated */
	int64_t left;    /* bytes for KV, scratch and state */
	int64_t margin;  /* bytes of a GPU that the chosen limits leave free */
	/* for the CPU's part of a model on two devices: weights and left as above, and the free
	 * memory */
	int64_t host_weights, host_left;
	FreeMemory host;
} MemoryFit;

llmc_limits
limits_take(const llmc_model *m, const llmc_limits *lim)
{
	llmc_limits l = LLMC_INIT(llmc_limits);

	SIZED_TAKE(l, lim);
	l.context = l.context ? l.context : (int32_t)m->spec->limit_context;
	l.seqs = l.seqs ? l.seqs : (int32_t)m->spec->limit_seqs;
	l.chunk = l.chunk ? l.chunk : (int32_t)m->spec->limit_chunk;
	return l;
}

/* Sum the memory of the ranks that share it: all ranks of this process on a CPU, one rank on a
 * GPU. */
static llmc_status
memory_of(const llmc_model *m, const llmc_limits *lim, llmc_memory *out, llmc_error *err)
{
	const int n = m->gpu >= 0 ? 1 : m->n_own;

	TRY(session_memory(m->plan, lim, out, err));
	for (int k = 1; k < n; k++) {
		llmc_memory more = LLMC_INIT(llmc_memory);
		TRY(session_memory(m->rank[m->first + k], lim, &more, err));
		out->weights += more.weights;
		out->kv += more.kv;
		out->scratch += more.scratch;
		out->state += more.state;
	}
	return LLMC_OK;
}

/* Compute the memory of the CPU's part of a model on two devices */
static llmc_status
host_memory_of(const llmc_model *m, const llmc_limits *lim, llmc_memory *out, llmc_error *err)
{
	*out = LLMC_INIT(llmc_memory);
	return session_memory(m->rank[1], lim, out, err);
}

static bool
two_devices(const llmc_model *m)
{
	return m->cpu_target[0] != 0;
}

/* Can the packed weights of a CPU be mapped from a file of the cache? */
static bool
can_map(const llmc_model *m)
{
	return !m->random_weights && !m->spec->lora.path;
}

/* Return the bytes of a plan's weights that are allocated. On a CPU, tensors in the layout of the
 * file are mapped and not counted, except with random weights. A GPU allocates all weights. */
static int64_t
plan_to_allocate(const llmc_model *m, const Plan *p, bool gpu)
{
	int64_t sum = 0;

	if (m->rt || (!gpu && m->cache_packed && can_map(m)))
		return 0;
	for (int i = 0; i < p->n_tensor; i++)
		if (gpu || m->random_weights || strcmp(p->tensor[i].layout, "row") != 0)
			sum += plan_tensor_bytes(&p->tensor[i]);
	return sum;
}

static int64_t
weights_to_allocate(const llmc_model *m)
{
	const bool gpu = m->gpu >= 0;
	int64_t sum = 0;

	for (int k = 0; k < (gpu ? 1 : m->n_own); k++)
		sum += plan_to_allocate(m, m->rank[m->first + k], gpu);
	return sum;
}

/* Like fits, for the CPU's part of a model on two devices. */
static bool
host_fits(const MemoryFit *f, const llmc_limits *lim, bool spare)
{
	llmc_memory mem;

	if (!two_devices(f->m))
		return true;
	if (host_memory_of(f->m, lim, &mem, NULL) != LLMC_OK)
		return false;
	const int64_t rest = f->host_left - mem.scratch - mem.state;
	return mem.kv <= (spare ? rest / 2 : rest);
}

/* Return true if a session with these limits fits. With `spare` it must also leave memory free: on
 * a host, which other programs use too, as much as the KV cache takes; on a GPU the margin. */
static bool
fits(const MemoryFit *f, const llmc_limits *lim, bool spare)
{
	llmc_memory mem = LLMC_INIT(llmc_memory);

	if (memory_of(f->m, lim, &mem, NULL) != LLMC_OK)
		return false;
	int64_t rest = f->left - mem.scratch - mem.state;
	if (spare)
		rest = f->m->gpu < 0 ? rest / 2 : rest - f->margin;
	return mem.kv <= rest && host_fits(f, lim, spare);
}

/* Return the largest kv_tokens (with `kv`), or the largest context of one sequence, that fits.
 * Values below `most` are rounded down to whole pages. least - 1: not even `least` fits. */
static int64_t
largest(const MemoryFit *f, const llmc_limits *lim, bool kv, int64_t least, int64_t most,
        bool spare)
{
	int64_t good = least - 1, bad = most + 1;
	llmc_limits l = *lim;

	for (int64_t mid = most; bad - good > 1; mid = good + (bad - good) / 2) {
		l.kv_tokens = mid;
		if (!kv)
			l.context = (int32_t)mid;
		if (fits(f, &l, spare))
			good = mid;
		else
			bad = mid;
	}
	if (good >= least + PLAN_KV_PAGE && good < most)
		good -= good % PLAN_KV_PAGE;
	return good;
}

/* Choose the context. *spare: the choice leaves memory free as `fits` demands. */
static int32_t
choose_context(const MemoryFit *f, const llmc_limits *lim, bool *spare)
{
	const int64_t most = f->m->plan->max_positions,
	              least = most < MIN_CONTEXT ? most : MIN_CONTEXT;

	int64_t n = largest(f, lim, false, least, most, true);
	*spare = n >= least;
	if (!*spare)
		n = largest(f, lim, false, least, most, false);
	return (int32_t)(n < least ? least : n);
}

static int64_t
choose_kv(const MemoryFit *f, const llmc_limits *lim)
{
	const int64_t least = lim->context, most = (int64_t)lim->context * lim->seqs;
	int64_t n = largest(f, lim, true, least, most, true);

	return n < least ? least : n;
}

/* The part of a model that does not fit: the whole model, or its part on one of two devices */
typedef struct Unfit {
	const Plan *plan;
	llmc_memory memory; /* for the limits of the session */
	int64_t weights;    /* bytes still to be allocated */
	int64_t left;       /* bytes for KV, scratch and state */
	bool host;          /* it is the part on the CPU */
} Unfit;

/* Write a remedy that divides the model between GPU and CPU in another way. Empty: there is
 * none. */
static void
divide(const MemoryFit *f, const Unfit *u, char *buf, size_t cap)
{
	const llmc_model *m = f->m;
	const int64_t need = u->weights + u->memory.kv + u->memory.scratch + u->memory.state;
	char a[32], target[32];

	*buf = 0;
	if (two_devices(m)) {
		snprintf(buf, cap, "\n  --offload auto, or a rule with %s on the CPU",
		         u->host ? "less" : "more");
		return;
	}
	if (!spec_can_divide(m->spec) || m->rt)
		return;
	const bool gpu = m->gpu >= 0;
	/* opened for its plan alone: the memory of this machine does not matter */
	if (m->no_weights) {
		if (gpu)
			snprintf(buf, cap, "\n  --offload auto: a part of the model on the CPU");
		return;
	}
	if (!gpu && device_of(TARGET_CUDA)->best_target(0, target, NULL) != LLMC_OK)
		return;
	const FreeMemory other = device_of(gpu ? TARGET_CPU : TARGET_CUDA)->free_memory(0);
	if (other.bytes != INT64_MAX && need <= u->left + u->weights + other.bytes)
		snprintf(buf, cap,
		         "\n  --offload auto: a part of the model on %s, which has %s free",
		         gpu ? "the CPU" : "GPU 0", human_bytes((double)other.bytes, a));
}

/* Append remedies for a session that does not fit, beginning with the smallest change. */
static void
remedies(const MemoryFit *f, const Unfit *u, const llmc_limits *lim, char *buf, size_t cap)
{
	static const struct {
		Dtype as;
		const char *name, *option;
	} smaller[] = { { DT_Q8_0, "Q8_0", "q8_0" },
		        { DT_Q6_K, "Q6_K", "q6_k" },
		        { DT_Q4_K, "Q4_K", "q4_k" } };
	const llmc_memory *mem = &u->memory;
	const bool cpu = f->m->gpu < 0 || u->host;
	const int64_t all = u->left + u->weights, session = mem->kv + mem->scratch + mem->state;
	llmc_limits l = *lim;
	char a[32], other[120];
	size_t n = 0;

	*buf = 0;
	l.seqs = 1;
	l.marks = l.marks > 1 ? 1 : l.marks;
	int64_t shorter = largest(f, &l, false, 32, lim->context - 1, false);
	if (shorter >= 32)
		n += (size_t)snprintf(buf + n, cap - n, "\n  --context %lld%s", (long long)shorter,
		                      lim->seqs > 1 ? " --seqs 1" : "");
	for (size_t i = 0; i < sizeof smaller / sizeof *smaller && n < cap; i++) {
		int64_t bytes = plan_weights_as(u->plan, smaller[i].as);
		if (f->m->rt || bytes >= mem->weights || bytes + session > all)
			continue;
		n += (size_t)snprintf(
		    buf + n, cap - n, "\n  --quantize %s, or a file of type %s: %s of weights",
		    smaller[i].option, smaller[i].name, human_bytes((double)bytes, a));
		break;
	}
	divide(f, u, other, sizeof other);
	if (n < cap)
		n += (size_t)snprintf(buf + n, cap - n, "%s", other);
	if (cpu && !f->m->cache_packed && !f->m->rt && can_map(f->m) && session <= all && n < cap)
		n += (size_t)snprintf(buf + n, cap - n,
		                      "\n  --cache-packed: %s of weights in a file of the cache, "
		                      "read from disk as they are used",
		                      human_bytes((double)u->weights, a));
	if (n)
		return;
	const int64_t least = plan_weights_as(u->plan, DT_Q4_K);
	if (!f->m->rt && least < mem->weights)
		snprintf(buf, cap,
		         "\n  more memory, or a smaller model: even weights of type Q4_K take %s",
		         human_bytes((double)least, a));
	else
		snprintf(buf, cap, "\n  more memory, or a smaller model");
}

/* limited: --memory has set the free bytes */
static llmc_status
refuse(const MemoryFit *f, const Unfit *u, const llmc_limits *lim, bool limited, int64_t free,
       const char *limited_by, llmc_error *err)
{
	char w[32], k[32], s[32], t[32], h[32], ways[500];
	const llmc_memory *mem = &u->memory;

	remedies(f, u, lim, ways, sizeof ways);
	return error_set(err, LLMC_E_FULL,
	                 "%s: %sneeds more memory than %s:\n"
	                 "  weights  %10s%s\n"
	                 "  KV       %10s   context %d, %lld positions in total\n"
	                 "  scratch  %10s   steps of %d tokens\n"
	                 "  total    %10s\n"
	                 "  %s%10s   %s\n"
	                 "remedies:%s",
	                 f->m->plan->name,
	                 !two_devices(f->m) ? ""
	                 : u->host          ? "the part on the CPU "
	                                    : "the part on the GPU ",
	                 limited ? "--memory allows" : "is free",
	                 human_bytes((double)mem->weights, w), f->m->rt ? "   (loaded)" : "",
	                 human_bytes((double)mem->kv, k), lim->context, (long long)lim->kv_tokens,
	                 human_bytes((double)mem->scratch + mem->state, s),
	                 lim->chunk ? lim->chunk : 512,
	                 human_bytes((double)mem->weights + mem->kv + mem->scratch + mem->state, t),
	                 limited ? "limit    " : "free     ", human_bytes((double)free, h),
	                 limited ? "--memory" : limited_by, ways);
}

/* Describe where the limit of the CPU's memory comes from, for a model on two devices */
static const char *
host_limit(const MemoryFit *f)
{
	return *f->host.limited_by ? f->host.limited_by : "--memory";
}

/* Refuse limits of a model on two devices if the CPU's part of the session does not fit. */
static llmc_status
check_host(const MemoryFit *f, const llmc_limits *lim, llmc_error *err)
{
	Unfit u = { .host = true, .weights = f->host_weights, .left = f->host_left };

	if (!two_devices(f->m))
		return LLMC_OK;
	u.plan = f->m->rank[1];
	TRY(host_memory_of(f->m, lim, &u.memory, err));
	if (u.memory.kv + u.memory.scratch + u.memory.state <= u.left)
		return LLMC_OK;
	return refuse(f, &u, lim, !*f->host.limited_by, f->host.bytes, host_limit(f), err);
}

/* Return true if the CPU's memory, not the GPU's, limits the choice for a model on two devices. */
static bool
host_bounds(const MemoryFit *f, const llmc_limits *lim, bool spare)
{
	llmc_limits more = *lim;

	more.context += more.kv_tokens == more.context ? PLAN_KV_PAGE : 0;
	more.kv_tokens += PLAN_KV_PAGE;
	return two_devices(f->m) && !host_fits(f, &more, spare);
}

/* Describe the chosen limits in one line. */
static void
describe(const MemoryFit *f, const llmc_fitted *r, const llmc_limits *given, bool spare,
         int64_t bytes, char *buf, size_t cap)
{
	const int32_t max_positions = (int32_t)f->m->plan->max_positions;
	const bool host = host_bounds(f, &r->limits, spare);
	const char *part = !spare ? "all of the memory that weights and scratch leave"
	                   : f->m->gpu >= 0 && !host
	                       ? "the memory that weights, scratch and a margin leave"
	                       : "half of the memory that weights and scratch leave";
	const llmc_limits *l = &r->limits;
	const int64_t most = (int64_t)l->context * l->seqs;
	char a[32], b[32], why[256], kv[96] = "";

	if (host)
		snprintf(why, sizeof why, "%s of %s for the CPU (%s)", part,
		         human_bytes((double)f->host.bytes, a), host_limit(f));
	else
		snprintf(why, sizeof why, "%s of %s (%s)", part,
		         human_bytes((double)bytes && bytes < r->free ? bytes : r->free, a),
		         bytes && bytes < r->free && r->free < INT64_MAX ? "--memory"
		                                                         : r->limited_by);
	const bool short_context = !given->context && l->context < max_positions,
	           short_kv = !given->kv_tokens && l->kv_tokens < most;
	if (l->seqs > 1)
		snprintf(kv, sizeof kv, "; KV for %lld positions, %d sequences",
		         (long long)l->kv_tokens, l->seqs);
	human_bytes((double)r->memory.kv, b);
	if (short_context)
		snprintf(buf, cap, "context %d of the model's %d (%s of KV)%s; limit: %s",
		         l->context, max_positions, b, kv, why);
	else
		snprintf(buf, cap, "context %d, %s (%s of KV)%s%s%s", l->context,
		         given->context ? "as set" : "the model's", b, kv,
		         short_kv ? "; limit: " : "", short_kv ? why : "");
}

/* Return the free memory for this model. `bytes` replaces it if the model was opened for its plan
 * alone. */
static llmc_status
memory_for(const llmc_model *m, int64_t bytes, FreeMemory *out, llmc_error *err)
{
	const Device *device;

	*out = (FreeMemory){ .bytes = INT64_MAX, .total = bytes, .limited_by = "as given" };
	if (m->no_fit || (m->no_weights && bytes > 0))
		return LLMC_OK;
	TRY(device_find(m->plan->target, &device, err));
	*out = device->free_memory(m->gpu);
	/* processes of a launcher share the memory of their host */
	if (m->world && m->gpu < 0 && out->bytes != INT64_MAX)
		out->bytes /= mpi_world_local_ranks(m->world);
	return LLMC_OK;
}

/* Set the memory of the CPU for a model on two devices: the free memory, or the caller's limit.
 * given: the caller has set the GPU's memory. */
static void
host_for(const llmc_model *m, bool given, MemoryFit *f)
{
	int64_t all = 0;

	if (!two_devices(m))
		return;
	f->host = (FreeMemory){ .bytes = INT64_MAX };
	f->host_weights = plan_to_allocate(m, m->rank[1], false);
	if (!m->no_fit && !(m->no_weights && given))
		f->host = device_of(TARGET_CPU)->free_memory(0);
	if (f->host.bytes == INT64_MAX)
		f->host.bytes = INT64_MAX / 4;
	f->host_left = f->host.bytes - f->host_weights;
	for (int i = 0; i < m->rank[1]->n_tensor; i++)
		all += plan_tensor_bytes(&m->rank[1]->tensor[i]);
	if (m->host_memory > 0 && m->host_memory - all < f->host_left) {
		f->host = (FreeMemory){ .bytes = m->host_memory };
		f->host_left = m->host_memory - all;
	}
}

/* Choose context and KV of a model with no_fit. */
static void
choose_defaults(const llmc_model *m, const llmc_limits *given, llmc_fitted *r)
{
	const int64_t max = m->plan->max_positions;
	llmc_limits *l = &r->limits;

	if (!given->context)
		l->context = (int32_t)(max < LLMC_DEFAULT_CONTEXT ? max : LLMC_DEFAULT_CONTEXT);
	if (!given->kv_tokens)
		l->kv_tokens =
		    (int64_t)l->context *
		    (l->seqs < LLMC_DEFAULT_KV_CONTEXTS ? l->seqs : LLMC_DEFAULT_KV_CONTEXTS);
	snprintf(r->text, sizeof r->text, "context %d of the model's %lld, not fitted to memory",
	         l->context, (long long)max);
}

llmc_status
llmc_fit_limits(const llmc_model *m, const llmc_limits *lim, int64_t bytes, llmc_fitted *out,
                llmc_error *err)
{
	llmc_fitted r = LLMC_INIT(llmc_fitted);
	const llmc_limits given = limits_take(m, lim);
	FreeMemory free;
	bool spare = true;

	TRY(memory_for(m, bytes, &free, err));
	r.free = free.bytes;
	snprintf(r.limited_by, sizeof r.limited_by, "%s", free.limited_by);
	r.limits = given;
	r.limits.seqs = given.seqs ? given.seqs : 1;
	r.limits.context = given.context ? given.context : 1;
	r.memory.size = sizeof r.memory;
	llmc_limits least = r.limits;
	least.kv_tokens = 0;
	TRY(memory_of(m, &least, &r.memory, err)); /* also checks the limits */

	MemoryFit f = { .m = m,
		        .weights = weights_to_allocate(m),
		        .margin = free.total / GPU_MARGIN };
	f.left = free.bytes == INT64_MAX ? INT64_MAX / 4 : free.bytes - f.weights;
	if (bytes > 0 && bytes - r.memory.weights < f.left)
		f.left = bytes - r.memory.weights;
	host_for(m, bytes > 0, &f);
	if (m->no_fit) {
		choose_defaults(m, &given, &r);
	} else {
		if (!given.context) {
			r.limits.kv_tokens = 0;
			r.limits.context = choose_context(&f, &r.limits, &spare);
		}
		r.limits.kv_tokens = given.kv_tokens ? given.kv_tokens : choose_kv(&f, &r.limits);
	}
	TRY(memory_of(m, &r.limits, &r.memory, err));
	int64_t session = r.memory.kv + r.memory.scratch + r.memory.state;
	r.need = f.weights + session;
	const bool over = bytes > 0 && r.memory.weights + session > bytes;
	if (over || session > f.left)
		return refuse(
		    &f,
		    &(Unfit){
		        .plan = m->plan, .memory = r.memory, .weights = f.weights, .left = f.left },
		    &r.limits, over, over ? bytes : r.free, r.limited_by, err);
	if (!m->no_fit || m->host_memory > 0)
		TRY(check_host(&f, &r.limits, err));
	if (!m->no_fit)
		describe(&f, &r, &given, spare, bytes, r.text, sizeof r.text);
	SIZED_GIVE(out, r);
	return LLMC_OK;
}

/* If all of the model is on a GPU, the GPU's own check refuses weights and sessions. */
llmc_status
fit_weights(const llmc_model *m, llmc_error *err)
{
	const int64_t max = m->plan->max_positions;
	llmc_limits least = LLMC_INIT(llmc_limits);
	llmc_fitted f = LLMC_INIT(llmc_fitted);

	least.context = (int32_t)(max < MIN_CONTEXT ? max : MIN_CONTEXT);
	least.chunk = m->plan->prompt_whole || m->plan->encoder ? 0 : MIN_CHUNK;
	return m->no_fit || (m->gpu >= 0 && !two_devices(m))
	           ? LLMC_OK
	           : llmc_fit_limits(m, &least, 0, &f, err);
}

llmc_status
fit_session(const llmc_model *m, llmc_limits *lim, llmc_error *err)
{
	llmc_fitted f = LLMC_INIT(llmc_fitted);

	if (m->no_fit || (m->gpu >= 0 && lim->context && !two_devices(m)))
		return LLMC_OK;
	TRY(llmc_fit_limits(m, lim, 0, &f, err));
	lim->context = f.limits.context;
	lim->kv_tokens = f.limits.kv_tokens;
	return LLMC_OK;
}

llmc_status
fit_engine(const llmc_model *m, const llmc_engine_options *o, llmc_limits *lim, llmc_error *err)
{
	const llmc_limits given = limits_take(m, o->limits);
	llmc_limits l = *lim;

	if (m->no_fit)
		return LLMC_OK;
	l.context = given.context;
	l.kv_tokens = given.kv_tokens ? given.kv_tokens : o->max_batch_total_tokens;
	llmc_fitted f = LLMC_INIT(llmc_fitted);
	if (l.context && l.kv_tokens) /* the caller has set both: llmc_session_open checks them */
		return LLMC_OK;
	TRY(llmc_fit_limits(m, &l, 0, &f, err));
	lim->context = f.limits.context;
	lim->kv_tokens = f.limits.kv_tokens;
	return LLMC_OK;
}
