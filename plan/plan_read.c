/* Reads a Plan from untrusted JSON. Strict: every key of docs/plan-format.md is present once, with
 * its type and within its range; any other key is an error. Errors name the location
 * ("phase[0].step[12].arg[3]").
 *
 * An error jumps back to plan_read; memory allocated so far stays in the arena. */
#include "plan/target.h"
#include "plan/plan_read.h"
#include "base/json.h"

#include <string.h>

/* Upper bound of a step's bytes and operations, so that the sum over the 2^20 steps of a phase fits
 * 63 bits. */
#define MAX_STEP ((int64_t)1 << 42)

static void
read_tensor(PlanReader *r, json_t *j, PlanTensor *t)
{
	json_t *a;

	bool factor = json_object_get(j, "factor") != NULL,
	     experts = factor && json_object_get(j, "experts");
	const char *which = factor ? rd_get_str(r, j, "factor") : "";

	rd_keys(r, j,
	        arena_printf(r->arena, "id dtype rows cols layout scale_cols symmetric %s%ssrc",
	                     factor ? "factor slots rank " : "",
	                     experts ? "experts first_expert all_experts " : ""));
	if (factor && strcmp(which, "a") != 0 && strcmp(which, "b") != 0)
		rd_bad(r, "factor", "\"%s\" is not a factor of an adapter (a or b)",
		       name_text(which, strlen(which)).s);
	*t = (PlanTensor){
		.id = rd_get_id(r, j, "id"),
		.dtype = rd_get_dtype(r, j, "dtype"),
		.rows = rd_get_int(r, j, "rows", 1, RD_MAX_SIZE),
		.cols = rd_get_int(r, j, "cols", 0, RD_MAX_SIZE),
		.layout = rd_get_str(r, j, "layout"),
		.scale_cols = rd_get_int(r, j, "scale_cols", 0, RD_MAX_SIZE),
		.symmetric = rd_get_bool(r, j, "symmetric"),
		.factor = !factor         ? FACTOR_NONE
		          : *which == 'a' ? FACTOR_A
		                          : FACTOR_B,
		.slots = factor ? (int)rd_get_int(r, j, "slots", 1, PLAN_MAX_ADAPTERS) : 0,
		.rank = factor ? (int)rd_get_int(r, j, "rank", 1, PLAN_MAX_RANK) : 0,
		.experts = experts ? (int)rd_get_int(r, j, "experts", 1, RD_MAX_COUNT) : 0,
		.first_expert =
		    experts ? (int)rd_get_int(r, j, "first_expert", 0, RD_MAX_COUNT) : 0,
		.all_experts = experts ? (int)rd_get_int(r, j, "all_experts", 1, RD_MAX_COUNT) : 0,
	};
	a = rd_get_array(r, j, "src", 1, RD_MAX_COUNT, &t->n_src);
	PlanSource *src = NEW(r->arena, PlanSource, t->n_src);
	t->src = src;
	for (int i = 0; i < t->n_src; i++) {
		json_t *s = json_array_get(a, (size_t)i);
		size_t was = rd_enter(r, "src", i);
		bool cut = json_object_get(s, "col_total");
		bool lora = json_object_get(s, "lora"), turned = json_object_get(s, "rows_in"),
		     groups = json_object_get(s, "col_groups");
		rd_keys(r, s,
		        arena_printf(r->arena,
		                     "name rows cols first block stride n_block rope_pairs "
		                     "transpose unit_rows permuted stored%s%s%s%s",
		                     cut ? " col_first col_total" : "", turned ? " rows_in" : "",
		                     groups ? " col_groups" : "",
		                     lora ? " lora lora_first lora_block lora_stride" : ""));
		src[i] = (PlanSource){
			.name = rd_get_str(r, s, "name"),
			.rows = rd_get_int(r, s, "rows", 1, RD_MAX_SIZE),
			.cols = rd_get_int(r, s, "cols", 0, RD_MAX_SIZE),
			.first = rd_get_int(r, s, "first", 0, RD_MAX_SIZE),
			.block = rd_get_int(r, s, "block", 1, RD_MAX_SIZE),
			.stride = rd_get_int(r, s, "stride", 0, RD_MAX_SIZE),
			.n_block = rd_get_int(r, s, "n_block", 1, RD_MAX_SIZE),
			.rope_pairs = rd_get_int(r, s, "rope_pairs", 0, 1 << 24),
			.transpose = rd_get_int(r, s, "transpose", 0, RD_MAX_SIZE),
			.unit_rows = rd_get_bool(r, s, "unit_rows"),
			.permuted = rd_get_bool(r, s, "permuted"),
			.stored = rd_get_str_or_null(r, s, "stored"),
			.col_groups = groups ? rd_get_int(r, s, "col_groups", 1, 1 << 24) : 0,
			.rows_in = turned ? rd_get_str(r, s, "rows_in") : NULL,
			.col_first = cut ? rd_get_int(r, s, "col_first", 0, RD_MAX_SIZE) : 0,
			.col_total = cut ? rd_get_int(r, s, "col_total", 1, RD_MAX_SIZE) : 0,
			.lora = lora ? rd_get_str(r, s, "lora") : NULL,
			.lora_first = lora ? rd_get_int(r, s, "lora_first", 0, RD_MAX_SIZE) : 0,
			.lora_block = lora ? rd_get_int(r, s, "lora_block", 1, RD_MAX_SIZE) : 0,
			.lora_stride = lora ? rd_get_int(r, s, "lora_stride", 0, RD_MAX_SIZE) : 0,
		};
		rd_leave(r, was);
	}
}

static KvType
get_kv_type(PlanReader *r, json_t *j, const char *key)
{
	const char *s = rd_get_str(r, j, key);
	KvType t = kv_type_from_text(s);

	if (t == KVT_NONE)
		rd_bad(r, key, "\"%s\" is not a KV type; expected one of %s",
		       name_text(s, strlen(s)).s, KV_TYPE_WORDS);
	return t;
}

static void
read_pool(PlanReader *r, json_t *j, PlanPool *p)
{
	bool state = json_object_get(j, "state") != NULL,
	     exact = json_object_get(j, "recent") != NULL,
	     segment = json_object_get(j, "segment") != NULL;

	rd_keys(r, j,
	        state     ? "id mla state k v rotate n_layers kv_heads k_dim v_dim keep"
	        : exact   ? "id mla k v rotate n_layers kv_heads k_dim v_dim keep recent sinks"
	        : segment ? "id mla k v rotate n_layers kv_heads k_dim v_dim keep segment"
	                  : "id mla k v rotate n_layers kv_heads k_dim v_dim keep");
	*p = (PlanPool){
		.id = rd_get_id(r, j, "id"),
		.mla = rd_get_bool(r, j, "mla"),
		.state = state && rd_get_bool(r, j, "state"),
		.k = get_kv_type(r, j, "k"),
		.v = get_kv_type(r, j, "v"),
		.rotate = rd_get_bool(r, j, "rotate"),
		.n_layers = (int)rd_get_int(r, j, "n_layers", 1, 1 << 16),
		.kv_heads = rd_get_int(r, j, "kv_heads", 1, 1 << 20),
		.k_dim = rd_get_int(r, j, "k_dim", 1, 1 << 20),
		.v_dim = rd_get_int(r, j, "v_dim", 0, 1 << 20),
		.keep = rd_get_int(r, j, "keep", 0, RD_MAX_SIZE),
		.recent = exact ? rd_get_int(r, j, "recent", 0, KV_MOST_EXACT) : 0,
		.sinks = exact ? rd_get_int(r, j, "sinks", 0, KV_MOST_EXACT) : 0,
		.segment = segment ? rd_get_int(r, j, "segment", 1, RD_MAX_SIZE) : 0,
	};
}

static void
read_slot(PlanReader *r, json_t *j, PlanExtent *s)
{
	*s = rd_extent(r, j, "");
}

static void
read_buffer(PlanReader *r, json_t *j, PlanBuffer *b)
{
	rd_keys(r, j, "id dtype extent slot");
	*b = (PlanBuffer){
		.id = rd_get_id(r, j, "id"),
		.dtype = rd_get_dtype(r, j, "dtype"),
		.extent = rd_get_extent(r, j, "extent"),
		.slot = (int)rd_get_int(r, j, "slot", 0, r->p->n_slot - 1),
	};
}

static void
read_product(PlanReader *r, json_t *j, PlanLaunch *u)
{
	json_t *v = json_object_get(j, "product");
	PlanGemm *p = &u->product;

	rd_keys(r, j, "product");
	size_t was = rd_enter(r, "product", -1);
	rd_keys(r, v, "act w y add beta");
	*p = (PlanGemm){
		.act = (int)rd_get_int(r, v, "act", 0, PLAN_MAX_ARGS - 1),
		.w = (int)rd_get_int(r, v, "w", 0, PLAN_MAX_ARGS - 1),
		.y = (int)rd_get_int(r, v, "y", 0, PLAN_MAX_ARGS - 1),
		.add = (int)rd_get_int(r, v, "add", -1, PLAN_MAX_ARGS - 1),
		.beta = rd_get_num(r, v, "beta"),
	};
	u->path = PATH_LIBRARY;
	rd_leave(r, was);
}

static PlanPath
get_path(PlanReader *r, json_t *j)
{
	const char *s = rd_get_str(r, j, "path");

	for (int i = 0; i < PATH_COUNT; i++)
		if (!strcmp(s, plan_path_text[i]))
			return (PlanPath)i;
	rd_bad(r, "path", "\"%s\" is not any, own or library", name_text(s, strlen(s)).s);
}

static PlanSym
get_symbol(PlanReader *r, json_t *j, const char *key)
{
	const char *s = rd_get_str(r, j, key);

	for (int i = 0; i < SYM_COUNT; i++)
		if (!strcmp(s, plan_sym_text[i]))
			return (PlanSym)i;
	rd_bad(r, key, "\"%s\" is not a symbol", name_text(s, strlen(s)).s);
}

static void
read_launches(PlanReader *r, json_t *j, PlanKernel *k)
{
	json_t *a = rd_get_array(r, j, "launch", 1, PLAN_MAX_LAUNCH, &k->n_launch);

	for (int i = 0; i < k->n_launch; i++) {
		json_t *v = json_array_get(a, (size_t)i);
		PlanLaunch *u = &k->launch[i];
		size_t was = rd_enter(r, "launch", i);
		int n;
		if (json_object_get(v, "product")) {
			read_product(r, v, u);
			rd_leave(r, was);
			continue;
		}
		bool rounds = json_object_get(v, "rounds");
		rd_keys(r, v,
		        rounds ? "fn block grid shared cluster pdl rounds path rows least most"
		               : "fn block grid shared cluster pdl path rows least most");
		*u = (PlanLaunch){
			.path = get_path(r, v),
			.fn = rd_get_str(r, v, "fn"),
			.block = (int)rd_get_int(r, v, "block", 1, 1024),
			.shared = rd_get_int(r, v, "shared", 0, 256 << 10),
			.cluster = (int)rd_get_int(r, v, "cluster", 1, 16),
			.pdl = rd_get_bool(r, v, "pdl"),
			.rounds = rounds ? (int)rd_get_int(r, v, "rounds", 1, 1 << 30) : 0,
			.rows = get_symbol(r, v, "rows"),
			.least = rd_get_int(r, v, "least", 0, INT32_MAX),
			.most = rd_get_int(r, v, "most", 0, INT32_MAX),
		};
		json_t *g = rd_get_array(r, v, "grid", 3, 3, &n);
		for (int d = 0; d < 3; d++) {
			u->grid[d] = rd_extent(r, json_array_get(g, (size_t)d), "grid");
			if (u->grid[d].mul < 1 || u->grid[d].mul > INT32_MAX)
				rd_bad(r, "grid", "a dimension of 0 or of more than %d blocks",
				       INT32_MAX);
		}
		rd_leave(r, was);
	}
}

static void
read_maps(PlanReader *r, json_t *j, PlanKernel *k)
{
	json_t *a = rd_get_array(r, j, "map", 0, PLAN_MAX_MAP, &k->n_map);

	for (int i = 0; i < k->n_map; i++) {
		json_t *v = json_array_get(a, (size_t)i);
		PlanMap *m = &k->map[i];
		size_t was = rd_enter(r, "map", i);
		int n;
		rd_keys(r, v, "arg cols box swizzle");
		m->arg = (int)rd_get_int(r, v, "arg", 0, PLAN_MAX_ARGS - 1);
		m->cols = rd_get_int(r, v, "cols", 8, INT32_MAX);
		m->swizzle = (int)rd_get_int(r, v, "swizzle", 0, 128);
		json_t *b = rd_get_array(r, v, "box", 2, 2, &n);
		for (int d = 0; d < 2; d++)
			m->box[d] =
			    (int)rd_int_value(r, json_array_get(b, (size_t)d), "box", 1, 256);
		rd_leave(r, was);
	}
}

static void
read_kernel(PlanReader *r, json_t *j, PlanKernel *k)
{
	bool cuda = target_is_cuda(r->p->target);

	rd_keys(r, j, cuda ? "id file symbol launch map arg" : "id file symbol arg");
	k->id = rd_get_id(r, j, "id");
	k->file = rd_get_str(r, j, "file");
	k->symbol = rd_get_str(r, j, "symbol");
	if (cuda) {
		read_launches(r, j, k);
		read_maps(r, j, k);
	}
	json_t *a = rd_get_array(r, j, "arg", 0, PLAN_MAX_ARGS, &k->n_arg);
	for (int i = 0; i < k->n_arg; i++) {
		json_t *v = json_array_get(a, (size_t)i);
		size_t was = rd_enter(r, "arg", i);
		rd_keys(r, v, "name dir type extent");
		const char *d = rd_get_str(r, v, "dir");
		int at = 0;
		while (at < DIR_COUNT && strcmp(d, plan_dir_text[at]))
			at++;
		if (at == DIR_COUNT)
			rd_bad(r, "dir",
			       "\"%s\" is not in, out, inout, pool, rope, scratch or none",
			       name_text(d, strlen(d)).s);
		k->arg[i] = (PlanKernelArg){ .name = rd_get_str(r, v, "name"),
			                     .dir = (PlanDir)at,
			                     .type = rd_get_str(r, v, "type"),
			                     .extent = rd_get_extent(r, v, "extent") };
		rd_leave(r, was);
	}
}

/* Returns the number at the end of a reference, or -1 if there is none. */
static int
index_text(const char *s, int n)
{
	int v = 0;

	if (!*s || (s[0] == '0' && s[1]))
		return -1;
	for (; *s; s++) {
		if (*s < '0' || *s > '9' || v > 1 << 24)
			return -1;
		v = v * 10 + (*s - '0');
	}
	return v < n ? v : -1;
}

static PlanRef
read_ref(PlanReader *r, json_t *v)
{
	const Plan *p = r->p;

	if (json_is_null(v))
		return (PlanRef){ .kind = REF_NONE };
	if (!json_is_string(v))
		rd_bad(r, "", "is %s, expected a reference (a string or null)", rd_type_name(v));
	const char *s = json_string_value(v);
	if (!strncmp(s, "rope:", 5)) {
		int i = index_text(s + 5, p->n_rope);
		if (i < 0)
			rd_bad(r, "", "\"%s\" is not a rotary table of this plan",
			       name_text(s, strlen(s)).s);
		return (PlanRef){ .kind = REF_ROPE, .index = i };
	}
	if (!strncmp(s, "kv:", 3)) {
		const char *colon = strchr(s + 3, ':');
		for (int i = 0; colon && i < p->n_pool; i++) {
			size_t len = strlen(p->pool[i].id);
			if ((size_t)(colon - s - 3) != len || memcmp(p->pool[i].id, s + 3, len))
				continue;
			int l = index_text(colon + 1, p->pool[i].n_layers);
			if (l < 0)
				break;
			return (PlanRef){ .kind = REF_POOL, .index = i, .layer_slot = l };
		}
		rd_bad(r, "", "\"%s\" is not a pool and layer of this plan",
		       name_text(s, strlen(s)).s);
	}
	const NameEntry *e = names_find(r->value, r->n_value, s);
	if (!e)
		rd_bad(r, "", "\"%s\" is not a tensor or buffer of this plan",
		       name_text(s, strlen(s)).s);
	if (e->at < (size_t)p->n_tensor)
		return (PlanRef){ .kind = REF_TENSOR, .index = (int)e->at };
	return (PlanRef){ .kind = REF_BUFFER, .index = (int)(e->at - (size_t)p->n_tensor) };
}

static void
read_attr(PlanReader *r, json_t *v, const char *key, Attr *a)
{
	a->key = arena_strdup(r->arena, key);
	if (json_is_integer(v)) {
		a->kind = ATTR_INT;
		a->i = json_integer_value(v);
	} else if (json_is_real(v)) {
		a->kind = ATTR_NUM;
		a->f = json_real_value(v);
	} else if (json_is_string(v)) {
		a->kind = ATTR_WORD;
		a->s = rd_str_value(r, v, key);
	} else {
		rd_bad(r, key, "is %s, expected an integer, a number or a word", rd_type_name(v));
	}
}

static void
read_step(PlanReader *r, json_t *j, PlanStep *s)
{
	int n;
	size_t was;
	json_t *prefetch = json_object_get(j, "prefetch");

	rd_keys(r, j,
	        prefetch
	            ? "op layer kernel arg attr make yaml_line weight_bytes flops_per_row prefetch"
	            : "op layer kernel arg attr make yaml_line weight_bytes flops_per_row");
	const char *op = rd_get_str(r, j, "op");
	s->op = op_by_name(op);
	if (s->op == OP_nop)
		rd_bad(r, "op", "\"%s\" is not an op of this llmc", name_text(op, strlen(op)).s);
	s->layer = (int)rd_get_int(r, j, "layer", -1, r->p->n_layers - 1);
	const char *kernel = rd_get_str_or_null(r, j, "kernel");
	s->kernel = kernel ? rd_kernel(r, "kernel", kernel) : -1;
	json_t *a = rd_get_array(r, j, "arg", 0, PLAN_MAX_ARGS, &s->n_arg);
	for (int i = 0; i < s->n_arg; i++) {
		was = rd_enter(r, "arg", i);
		s->arg[i] = read_ref(r, json_array_get(a, (size_t)i));
		rd_leave(r, was);
	}
	json_t *attr = json_object_get(j, "attr"), *v;
	const char *key;
	if (!json_is_object(attr) || json_object_size(attr) > OP_MAX_ATTRS)
		rd_bad(r, "attr", "is not an object of at most %d attributes", OP_MAX_ATTRS);
	was = rd_enter(r, "attr", -1);
	json_object_foreach (attr, key, v)
		read_attr(r, v, key, &s->attr[s->n_attr++]);
	rd_leave(r, was);
	a = rd_get_array(r, j, "make", 0, PLAN_MAX_MAKES, &n);
	for (s->n_make = 0; s->n_make < n; s->n_make++) {
		was = rd_enter(r, "make", s->n_make);
		json_t *m = json_array_get(a, (size_t)s->n_make);
		rd_keys(r, m, "value arg");
		s->make[s->n_make] =
		    (PlanMake){ .value = rd_get_str(r, m, "value"),
			        .arg = (int)rd_get_int(r, m, "arg", -1, s->n_arg - 1) };
		rd_leave(r, was);
	}
	s->yaml_line = (int)rd_get_int(r, j, "yaml_line", 0, INT32_MAX);
	s->weight_bytes = rd_get_int(r, j, "weight_bytes", 0, MAX_STEP);
	s->flops_per_row = rd_get_int(r, j, "flops_per_row", 0, MAX_STEP);
	if (prefetch)
		a = rd_get_array(r, j, "prefetch", 1, PLAN_MAX_PREFETCH, &s->n_prefetch);
	for (int i = 0; i < s->n_prefetch; i++) {
		was = rd_enter(r, "prefetch", i);
		rd_prefetch(r, json_array_get(a, (size_t)i), &s->prefetch[i]);
		rd_leave(r, was);
	}
}

/* fills p->field with the elements of j's member `field`, each read by fn */
#define READ_ALL(r, j, field, Type, min, max, fn)                                                  \
	do {                                                                                       \
		json_t *all_ = rd_get_array((r), (j), #field, (min), (max), &(r)->p->n_##field);   \
		(r)->p->field = NEW((r)->arena, Type, (r)->p->n_##field + 1);                      \
		for (int i_ = 0; i_ < (r)->p->n_##field; i_++) {                                   \
			size_t was_ = rd_enter((r), #field, i_);                                   \
			fn((r), json_array_get(all_, (size_t)i_), &(r)->p->field[i_]);             \
			rd_leave((r), was_);                                                       \
		}                                                                                  \
	} while (0)

static void
name_values(PlanReader *r)
{
	const Plan *p = r->p;
	const NameEntry *twice;

	r->n_value = (size_t)p->n_tensor + (size_t)p->n_buffer;
	r->value = NEW(r->arena, NameEntry, r->n_value + 1);
	for (int i = 0; i < p->n_tensor; i++)
		r->value[i] = (NameEntry){ p->tensor[i].id, (size_t)i };
	for (int i = 0; i < p->n_buffer; i++)
		r->value[p->n_tensor + i] =
		    (NameEntry){ p->buffer[i].id, (size_t)(p->n_tensor + i) };
	if ((twice = names_sort(r->value, r->n_value)) != NULL)
		rd_bad(r, "", "the id \"%s\" is used twice",
		       name_text(twice->name, strlen(twice->name)).s);
	r->n_kernel = (size_t)p->n_kernel;
	r->kernel = NEW(r->arena, NameEntry, r->n_kernel + 1);
	for (int i = 0; i < p->n_kernel; i++)
		r->kernel[i] = (NameEntry){ p->kernel[i].id, (size_t)i };
	if ((twice = names_sort(r->kernel, r->n_kernel)) != NULL)
		rd_bad(r, "", "the kernel id \"%s\" is used twice",
		       name_text(twice->name, strlen(twice->name)).s);
	for (int i = 0; i < p->n_pool; i++)
		for (int k = 0; k < i; k++)
			if (!strcmp(p->pool[i].id, p->pool[k].id))
				rd_bad(r, "", "the pool id \"%s\" is used twice",
				       name_text(p->pool[i].id, strlen(p->pool[i].id)).s);
}

static void
read_phase(PlanReader *r, json_t *j, PlanPhase *ph)
{
	rd_keys(r, j, "id step");
	ph->id = rd_get_str(r, j, "id");
	json_t *a = rd_get_array(r, j, "step", 1, RD_MAX_COUNT, &ph->n_step);
	ph->step = NEW(r->arena, PlanStep, ph->n_step);
	for (int i = 0; i < ph->n_step; i++) {
		size_t was = rd_enter(r, "step", i);
		read_step(r, json_array_get(a, (size_t)i), &ph->step[i]);
		rd_leave(r, was);
	}
}

#define KEYS_BELOW                                                                                 \
	"vocab vocab_used hidden max_positions n_layers hard_limit prompt_whole prefix_mark "      \
	"prefix_end prompt_prefix checkpoint weights "                                             \
	"bos eos n_params logits tensor pool rope slot buffer kernel phase"

/* Returns the buffer that a key names */
static int
read_buffer_of(PlanReader *r, json_t *j, const char *key)
{
	const char *id = rd_get_str(r, j, key);
	const NameEntry *e = names_find(r->value, r->n_value, id);

	if (!e || e->at < (size_t)r->p->n_tensor)
		rd_bad(r, key, "\"%s\" is not a buffer of this plan", name_text(id, strlen(id)).s);
	return (int)(e->at - (size_t)r->p->n_tensor);
}

static void
read_vision(PlanReader *r, json_t *j, bool given)
{
	Plan *p = r->p;
	const char *word = given ? rd_get_str(r, j, "vision") : plan_vision_name[VISION_NONE];

	p->merge = 1;
	p->image_token = -1;
	if (!given)
		return;
	p->vision = strcmp(word, plan_vision_name[VISION_ROWS]) == 0    ? VISION_ROWS
	            : strcmp(word, plan_vision_name[VISION_TOWER]) == 0 ? VISION_TOWER
	                                                                : VISION_NONE;
	if (p->vision == VISION_NONE)
		rd_bad(r, "vision", "is \"%s\", expected rows or tower",
		       name_text(word, strlen(word)).s);
	p->row_width = rd_get_int(r, j, "row_width", 1, INT32_MAX);
	p->image_whole = rd_get_bool(r, j, "image_whole");
	p->merge = rd_get_int(r, j, "merge", 1, 1024);
	p->class_rows = (int)rd_get_int(r, j, "class_rows", 0, 1);
	p->image_token = (int32_t)rd_get_int(r, j, "image_token", -1, INT32_MAX);
}

static void
read_draft(PlanReader *r, json_t *j)
{
	PlanDraft *d = &r->p->draft;
	const size_t was = rd_enter(r, "draft", -1);

	rd_keys(r, j, "row_width own_at vocab tokens offsets model");
	d->row_width = rd_get_int(r, j, "row_width", 1, INT32_MAX);
	d->own_at = rd_get_int(r, j, "own_at", 1, d->row_width - 1);
	d->vocab = rd_get_int(r, j, "vocab", 0, r->p->vocab);
	d->tokens = rd_get_str_or_null(r, j, "tokens");
	d->offsets = rd_get_bool(r, j, "offsets");
	d->model = rd_get_str_or_null(r, j, "model");
	rd_leave(r, was);
}

static void
read_plan(PlanReader *r, json_t *j)
{
	Plan *p = r->p;
	int n;

	if (!json_is_object(j))
		rd_bad(r, "", "is %s, expected an object", rd_type_name(j));
	/* check the format first: a plan of another format may have other keys */
	if (!json_object_get(j, "format"))
		rd_bad(r, "format", "is missing: this is not a plan");
	p->format = (int)rd_get_int(r, j, "format", 0, INT32_MAX);
	if (p->format != PLAN_FORMAT)
		rd_bad(r, "format",
		       "is %d, this llmc reads %d: compile the model again with this llmc",
		       p->format, PLAN_FORMAT);
	bool ranks = json_object_get(j, "ranks"), stages = json_object_get(j, "stages"),
	     output = json_object_get(j, "output"), lora = json_object_get(j, "lora"),
	     host = json_object_get(j, "kv_host"), rows = json_object_get(j, "rows"),
	     encoder = json_object_get(j, "token_types"),
	     partitions = json_object_get(j, "partitions"), vision = json_object_get(j, "vision"),
	     l2 = json_object_get(j, "l2_budget"), draft = json_object_get(j, "draft");
	rd_keys(
	    r, j,
	    arena_printf(
	        r->arena,
	        "format step_abi name family spec_sha256 target "
	        "%s%s%s%s%s%s%s%s%s%s%s%s" KEYS_BELOW,
	        rows ? "rows takes_rows " : "", draft ? "draft " : "",
	        lora ? "lora lora_scale " : "", output ? "output " : "", ranks ? "rank ranks " : "",
	        stages ? "stage stages window " : "",
	        partitions ? stages ? "partition partitions " : "partition partitions window " : "",
	        host ? "kv_host " : "", encoder ? "token_types " : "",
	        vision ? "vision row_width image_whole merge class_rows image_token " : "",
	        l2 ? "l2_budget " : "", json_object_get(j, "persistent") ? "persistent " : ""));
	p->step_abi = (int)rd_get_int(r, j, "step_abi", 0, INT32_MAX);
	if (p->step_abi != PLAN_STEP_ABI)
		rd_bad(r, "step_abi",
		       "is %d, this llmc needs %d: compile the model again with this llmc",
		       p->step_abi, PLAN_STEP_ABI);
	p->name = rd_get_str(r, j, "name");
	p->family = rd_get_str(r, j, "family");
	p->spec_sha256 = rd_get_str(r, j, "spec_sha256");
	p->target = rd_get_str(r, j, "target");
	const char *word =
	    output ? rd_get_str(r, j, "output") : plan_output_name[LLMC_OUTPUT_LOGITS];
	while (p->output < LLMC_OUTPUT_LABELS && strcmp(word, plan_output_name[p->output]) != 0)
		p->output++;
	if (strcmp(word, plan_output_name[p->output]) != 0)
		rd_bad(r, "output", "is \"%s\", expected logits, hidden or labels",
		       name_text(word, strlen(word)).s);
	p->ranks = ranks ? (int)rd_get_int(r, j, "ranks", 2, PLAN_MAX_RANKS) : 1;
	p->rank = ranks ? (int)rd_get_int(r, j, "rank", 0, p->ranks - 1) : 0;
	p->stages = stages ? (int)rd_get_int(r, j, "stages", 2, PLAN_MAX_RANKS) : 1;
	p->stage = stages ? (int)rd_get_int(r, j, "stage", 0, p->stages - 1) : 0;
	p->partitions = partitions ? (int)rd_get_int(r, j, "partitions", 2, 2) : 1;
	p->partition = partitions ? (int)rd_get_int(r, j, "partition", 0, 1) : 0;
	p->window = stages || partitions ? rd_get_int(r, j, "window", 0, RD_MAX_SIZE) : 0;
	p->l2_budget = l2 ? rd_get_int(r, j, "l2_budget", 1, RD_MAX_SIZE) : 0;
	p->kv_host = host ? rd_get_int(r, j, "kv_host", 1, RD_MAX_SIZE) : 0;
	p->encoder = encoder;
	p->token_types = encoder ? (int)rd_get_int(r, j, "token_types", 0, 1024) : 0;
	p->lora = lora ? rd_get_str(r, j, "lora") : NULL;
	p->lora_scale = lora ? rd_get_num(r, j, "lora_scale") : 0;
	p->vocab = rd_get_int(r, j, "vocab", 1, INT32_MAX);
	p->vocab_used = rd_get_int(r, j, "vocab_used", 1, p->vocab);
	p->hidden = rd_get_int(r, j, "hidden", 1, INT32_MAX);
	p->max_positions = rd_get_int(r, j, "max_positions", 1, INT32_MAX);
	p->n_layers = (int)rd_get_int(r, j, "n_layers", 1, 1 << 16);
	p->hard_limit = rd_get_bool(r, j, "hard_limit");
	p->prompt_whole = rd_get_bool(r, j, "prompt_whole");
	p->prefix_mark = (int32_t)rd_get_int(r, j, "prefix_mark", -1, INT32_MAX);
	p->prefix_end = (int32_t)rd_get_int(r, j, "prefix_end", -1, INT32_MAX);
	p->prompt_prefix = rd_get_str_or_null(r, j, "prompt_prefix");
	p->checkpoint = rd_get_str(r, j, "checkpoint");
	p->weights = rd_get_str_or_null(r, j, "weights");
	p->bos = (int32_t)rd_get_int(r, j, "bos", -1, INT32_MAX);
	json_t *a = rd_get_array(r, j, "eos", 0, PLAN_MAX_EOS, &n);
	for (p->n_eos = 0; p->n_eos < n; p->n_eos++)
		p->eos[p->n_eos] = (int32_t)rd_int_value(r, json_array_get(a, (size_t)p->n_eos),
		                                         "eos", 0, INT32_MAX);
	p->n_params = rd_get_int(r, j, "n_params", 0, INT64_MAX);
	READ_ALL(r, j, tensor, PlanTensor, 1, RD_MAX_COUNT, read_tensor);
	READ_ALL(r, j, pool, PlanPool, 0, 64, read_pool);
	READ_ALL(r, j, rope, PlanRope, 0, 64, rd_rope);
	READ_ALL(r, j, slot, PlanExtent, 1, RD_MAX_COUNT, read_slot);
	READ_ALL(r, j, buffer, PlanBuffer, 1, RD_MAX_COUNT, read_buffer);
	READ_ALL(r, j, kernel, PlanKernel, 0, RD_MAX_COUNT, read_kernel);
	name_values(r);
	p->logits = read_buffer_of(r, j, "logits");
	p->outputs_rows = rows;
	p->rows = rows ? read_buffer_of(r, j, "rows") : 0;
	p->takes_rows = rows && rd_get_bool(r, j, "takes_rows");
	if (draft)
		read_draft(r, json_object_get(j, "draft"));
	read_vision(r, j, vision);
	rd_persistent(r, j);
	READ_ALL(r, j, phase, PlanPhase, 2, 2, read_phase);
	if (strcmp(p->phase[0].id, "decode") || strcmp(p->phase[1].id, "mixed"))
		rd_bad(r, "phase", "are \"%s\" and \"%s\", expected \"decode\" and \"mixed\"",
		       name_text(p->phase[0].id, strlen(p->phase[0].id)).s,
		       name_text(p->phase[1].id, strlen(p->phase[1].id)).s);
}

llmc_status
plan_read(const char *text, size_t size, const char *name, Arena *arena, Plan **out,
          llmc_error *err)
{
	json_error_t at;

	*out = NULL;
	json_t *root = json_read(arena, text, size, JSON_REJECT_DUPLICATES, &at);
	if (!root)
		return error_set(err, LLMC_E_INPUT, "%s:%d:%d: not valid JSON: %s", name, at.line,
		                 at.column, at.text);
	PlanReader *r = NEW(arena, PlanReader, 1);
	r->arena = arena;
	r->err = err;
	r->name = name;
	if (!setjmp(r->out)) {
		r->p = NEW(arena, Plan, 1);
		read_plan(r, root);
	}
	arena_done(arena, root);
	if (r->status != LLMC_OK)
		return r->status;
	llmc_status status = plan_check(r->p, err);
	if (status != LLMC_OK) {
		error_prefix(err, "%s", name);
		return status;
	}
	*out = r->p;
	return LLMC_OK;
}
