/* Checks the tables of a plan: tensors and their sources, pools, rotary tables, slots, buffers,
 * kernels. A plan that passes is safe to execute: segments lie within their sources and fill the
 * tensor, buffers lie within their slots for all values of the symbols, and sizes do not
 * overflow. */
#include "plan/plan_check.h"

#include <math.h>
#include <string.h>

#include "formats/layout.h"

static const int64_t MAX_ELEMS = (int64_t)1 << 50;

#define BAD(...) error_set(err, LLMC_E_INPUT, __VA_ARGS__)

/* ---- tensors ---- */

static llmc_status
check_source(const PlanTensor *t, const PlanSource *s, int k, int64_t *rows, llmc_error *err)
{
	int64_t width = s->cols ? s->cols : 1, elems, n, last, have = s->rows, row = width,
	        want = s->col_total ? s->col_total : t->cols;

	if (!*s->name)
		return BAD("tensor %s: source %d has no name", t->id, k);
	if (__builtin_mul_overflow(s->rows, width, &elems) || elems > MAX_ELEMS ||
	    __builtin_mul_overflow(s->n_block, s->block, &n) || n > MAX_ELEMS ||
	    __builtin_mul_overflow(s->n_block - 1, s->stride, &last) ||
	    __builtin_add_overflow(last, s->block, &last) ||
	    __builtin_add_overflow(last, s->first, &last))
		return BAD("tensor %s: source %s is too large", t->id, s->name);
	if (s->col_total && (!t->cols || s->unit_rows || s->col_total != t->src[0].col_total))
		return BAD("tensor %s: source %s: columns can be cut only from a matrix in file "
		           "order, from all its sources in the same way",
		           t->id, s->name);
	if (s->col_total && (s->col_first > s->col_total - t->cols ||
	                     s->col_first % dtype_info(t->dtype)->block_elems))
		return BAD("tensor %s: source %s: columns %lld .. %lld of %lld do not exist, or "
		           "do not begin at a block of %s",
		           t->id, s->name, (long long)s->col_first,
		           (long long)s->col_first + (long long)t->cols - 1,
		           (long long)s->col_total, dtype_text(t->dtype));
	if (t->src[0].col_total && !s->col_total)
		return BAD("tensor %s: source %s is not cut, the first one is", t->id, s->name);
	if (s->col_total && dtype_row_bytes(t->dtype, s->col_total) < 0)
		return BAD(
		    "tensor %s: source %s: rows of %lld elements are not a multiple of the %s "
		    "block size",
		    t->id, s->name, (long long)s->col_total, dtype_text(t->dtype));
	Dtype from = plan_source_dtype(t, s);
	if (from == DT_NONE || from == DT_I32 || from == DT_I64)
		return BAD("tensor %s: source %s: stored as \"%s\", which is not a weight type",
		           t->id, s->name, s->stored);
	if (s->lora && (!t->cols || s->lora_block < 1 ||
	                (n > s->lora_block && s->lora_stride < s->lora_block)))
		return BAD("tensor %s: source %s: adapters change only matrices", t->id, s->name);
	if (s->stored && (!t->cols || !dtype_is_float(t->dtype)))
		return BAD("tensor %s: source %s: only matrices of f32, f16 or bf16 can be "
		           "converted from another type, this is %s",
		           t->id, s->name, dtype_text(t->dtype));
	if (s->stored && dtype_row_bytes(from, s->cols) < 0)
		return BAD(
		    "tensor %s: source %s: rows of %lld elements are not a multiple of the %s "
		    "block size",
		    t->id, s->name, (long long)s->cols, dtype_text(from));
	if (s->transpose) {
		if (!t->cols || !dtype_is_float(t->dtype))
			return BAD("tensor %s: source %s: only matrices of f32, f16 or bf16 can be "
			           "transposed, this is %s",
			           t->id, s->name, dtype_text(t->dtype));
		if (s->transpose != s->cols || s->rows % want)
			return BAD("tensor %s: source %s is [%lld, %lld], not a stack of [%lld, "
			           "%lld] to transpose",
			           t->id, s->name, (long long)s->rows, (long long)s->cols,
			           (long long)want, (long long)s->transpose);
		have = s->rows / want * s->transpose;
		row = want;
	}
	if (last > have)
		return BAD("tensor %s: source %s has %lld rows, its blocks reach row %lld", t->id,
		           s->name, (long long)have, (long long)last);
	if (t->cols && row != want)
		return BAD("tensor %s: source %s has rows of %lld elements, expected %lld", t->id,
		           s->name, (long long)row, (long long)want);
	if (s->rope_pairs && (s->rope_pairs % 2 || n % s->rope_pairs))
		return BAD(
		    "tensor %s: source %s: %lld rows are not a multiple of the rotary head size "
		    "%lld",
		    t->id, s->name, (long long)n, (long long)s->rope_pairs);
	if (s->unit_rows && (!t->cols || !dtype_is_float(t->dtype)))
		return BAD("tensor %s: source %s: rows can be normalised in matrices of f32, f16 "
		           "or bf16, this is %s",
		           t->id, s->name, dtype_text(t->dtype));
	if (s->permuted && (!t->cols || s->transpose))
		return BAD("tensor %s: source %s: only columns of a matrix in file order can be "
		           "permuted",
		           t->id, s->name);
	if (s->rows_in && (s->transpose || s->rope_pairs || s->lora || (!t->cols && width > 1)))
		return BAD("tensor %s: source %s: only rows in file order can have rows_in", t->id,
		           s->name);
	if (s->col_groups && (t->cols % s->col_groups || !t->cols || s->transpose || s->col_total ||
	                      s->unit_rows || s->permuted || s->lora))
		return BAD(
		    "tensor %s: source %s: %lld columns in file order cannot be read in %lld "
		    "groups",
		    t->id, s->name, (long long)t->cols, (long long)s->col_groups);
	if (!t->cols && __builtin_mul_overflow(n, width, &n))
		return BAD("tensor %s: source %s is too large", t->id, s->name);
	if (__builtin_add_overflow(*rows, n, rows) || *rows > MAX_ELEMS)
		return BAD("tensor %s: its sources are too large", t->id);
	return LLMC_OK;
}

/* Checks adapter slots, whose sources select rows of a module's factors. */
static llmc_status
check_factor(const PlanTensor *t, llmc_error *err)
{
	const int64_t matrices = t->experts              ? (int64_t)t->experts * t->n_src
	                         : t->factor == FACTOR_A ? t->n_src
	                                                 : 1;
	int64_t each = 0;

	if (t->experts > t->all_experts || t->first_expert > t->all_experts - t->experts)
		return BAD("tensor %s: experts from %d on, %d of %d", t->id, t->first_expert,
		           t->experts, t->all_experts);
	if (t->cols || t->dtype != DT_F32 || strcmp(t->layout, "f32") || t->scale_cols ||
	    t->symmetric)
		return BAD("tensor %s: factors of adapters are a vector of f32", t->id);
	for (int k = 0; k < t->n_src; k++) {
		const PlanSource *s = &t->src[k];
		int64_t n, last;
		if (!s->lora || !*s->name || s->stored || s->transpose || s->rope_pairs ||
		    s->unit_rows || s->permuted || s->rows_in || s->col_groups ||
		    (s->col_total &&
		     (t->factor != FACTOR_A || s->col_total > MAX_ELEMS || s->cols > s->col_total ||
		      s->col_first > s->col_total - s->cols)))
			return BAD("tensor %s: source %d of a factor must have a module, columns "
			           "for a right factor, and no other keys",
			           t->id, k);
		if (__builtin_mul_overflow(s->n_block, s->block, &n) || n > MAX_ELEMS ||
		    s->lora_block < 1 ||
		    __builtin_mul_overflow((n - 1) / s->lora_block, s->lora_stride, &last) ||
		    last > MAX_ELEMS || s->lora_first > MAX_ELEMS || s->cols < 1 ||
		    s->cols > MAX_ELEMS || (n > s->lora_block && s->lora_stride < s->lora_block))
			return BAD("tensor %s: source %s is too large, or its blocks overlap",
			           t->id, s->name);
		if (t->factor == FACTOR_B &&
		    (t->experts ? n != t->src[0].n_block * t->src[0].block : t->n_src != 1))
			return BAD("tensor %s: left factors of several matrices, %s", t->id,
			           t->experts ? "not alike" : "which are not experts");
		if (t->experts &&
		    (!strchr(s->name, '#') || n > s->lora_block || s->first > MAX_ELEMS ||
		     n > MAX_ELEMS - s->first || s->stride < s->first + n ||
		     s->stride > MAX_ELEMS / t->all_experts))
			return BAD("tensor %s: source %s does not map rows of an expert to rows "
			           "of all experts",
			           t->id, s->name);
		if (t->factor == FACTOR_A && s->cols != t->src[0].cols)
			return BAD("tensor %s: source %s has %lld columns, the first one %lld",
			           t->id, s->name, (long long)s->cols, (long long)t->src[0].cols);
		each = t->factor == FACTOR_A ? s->cols : n;
	}
	if (__builtin_mul_overflow(each, (int64_t)t->slots * t->rank, &each) ||
	    __builtin_mul_overflow(each, matrices, &each) || each != t->rows)
		return BAD("tensor %s has %lld elements, its slots %lld", t->id, (long long)t->rows,
		           (long long)each);
	return LLMC_OK;
}

static llmc_status
check_tensor(const PlanTensor *t, llmc_error *err)
{
	int64_t rows = 0, elems;

	if (t->dtype == DT_I32 || t->dtype == DT_I64)
		return BAD("tensor %s: weights of type %s are not supported", t->id,
		           dtype_text(t->dtype));
	if (__builtin_mul_overflow(t->rows, t->cols ? t->cols : 1, &elems) || elems > MAX_ELEMS)
		return BAD("tensor %s: [%lld, %lld] is too large", t->id, (long long)t->rows,
		           (long long)t->cols);
	const Layout *l = layout_find(t->layout);
	if (!l)
		return BAD("tensor %s: unknown layout \"%s\"", t->id, t->layout);
	if (t->cols && dtype_row_bytes(t->dtype, t->cols) < 0)
		return BAD("tensor %s: rows of %lld elements are not a multiple of the %s block "
		           "size",
		           t->id, (long long)t->cols, dtype_text(t->dtype));
	if (!t->cols && (strcmp(t->layout, "f32") || !dtype_is_float(t->dtype)) &&
	    (strcmp(t->layout, "row") || !dtype_is_float(t->dtype)))
		return BAD("tensor %s: a vector of %s in layout \"%s\" is not supported", t->id,
		           dtype_text(t->dtype), t->layout);
	if (plan_tensor_bytes(t) < 0)
		return BAD("tensor %s: %s [%lld, %lld] does not fit the layout \"%s\"", t->id,
		           dtype_text(t->dtype), (long long)t->rows, (long long)t->cols, t->layout);
	const int64_t group = dtype_group(t->dtype).columns;
	if ((t->scale_cols || t->symmetric) && !group)
		return BAD("tensor %s: %s has a scale per block and cannot share scales", t->id,
		           dtype_text(t->dtype));
	const int64_t wide = t->n_src && t->src[0].col_total ? t->src[0].col_total : t->cols;
	if (t->scale_cols && (t->scale_cols % group || wide % t->scale_cols))
		return BAD("tensor %s: %lld columns cannot share a scale: they are not a "
		           "multiple of the group size of %s, or do not divide %lld",
		           t->id, (long long)t->scale_cols, dtype_text(t->dtype), (long long)wide);
	if (t->factor)
		return check_factor(t, err);
	for (int k = 0; k < t->n_src; k++)
		TRY(check_source(t, &t->src[k], k, &rows, err));
	if (rows != t->rows)
		return BAD("tensor %s has %lld rows, its sources give %lld", t->id,
		           (long long)t->rows, (long long)rows);
	return LLMC_OK;
}

/* ---- pools, rotary tables, slots, buffers, kernels ---- */

static llmc_status
check_pool(const Plan *plan, const PlanPool *p, llmc_error *err)
{
	int64_t all, exact = plan_layer_exact_bytes(p);

	if (exact && (p->mla || p->state || (!kv_quantised(p->k) && !kv_quantised(p->v))))
		return BAD("pool %s: exact pages need quantised keys or values", p->id);
	if (kv_by_channel(p->v) || (kv_by_channel(p->k) && p->recent < KV_LEAST_RECENT))
		return BAD("pool %s: only keys may have per-channel scales, and these need at "
		           "least %d recent positions",
		           p->id, KV_LEAST_RECENT);
	if (exact && (plan->stages * plan->partitions > 1 || plan->prompt_whole))
		return BAD("pool %s: exact pages are not supported with stages or prompt_whole",
		           p->id);

	if (p->state && (p->mla || p->k != KVT_F32 || p->v != KVT_F32 || p->rotate || p->keep))
		return BAD("pool %s: a pool of recurrent states must be f32, without other pool "
		           "keys",
		           p->id);
	if (p->mla && (p->kv_heads != 1 || p->v_dim != 0))
		return BAD("pool %s: a latent pool has one head and no v_dim", p->id);
	if (p->mla && (p->k != p->v || !kv_for_latents(p->k) || p->rotate))
		return BAD(
		    "pool %s: a latent pool needs one type, unquantised or with groups, and no "
		    "rotation",
		    p->id);
	if (p->rotate && !kv_rotates(p->k) && !kv_rotates(p->v))
		return BAD("pool %s: %s and %s rows are not rotated", p->id,
		           kv_type_info(p->k)->text, kv_type_info(p->v)->text);
	int64_t one = p->state ? plan_layer_state_bytes(p) : plan_layer_page_bytes(p);
	if (one < 1 || exact < 0 || __builtin_add_overflow(one, exact, &one) ||
	    __builtin_mul_overflow(one, (int64_t)p->n_layers, &all) || all > MAX_ELEMS)
		return BAD("pool %s is too large", p->id);
	return LLMC_OK;
}

static bool
all_positive(const double *v, int n)
{
	for (int i = 0; i < n; i++)
		if (!(v[i] > 0))
			return false;
	return true;
}

static llmc_status
check_rope(const PlanRope *r, int i, llmc_error *err)
{
	const char *s = r->scaling;
	bool dynamic = !strcmp(s, "dynamic"), yarn = !strcmp(s, "yarn"),
	     llama3 = !strcmp(s, "llama3"), longrope = !strcmp(s, "longrope"),
	     linear = !strcmp(s, "linear"), proportional = !strcmp(s, "proportional");

	if (!dynamic && !yarn && !llama3 && !longrope && !linear && !proportional &&
	    strcmp(s, "none"))
		return BAD("rope[%d]: unknown scaling \"%s\"", i, s);
	if (r->dims % 2)
		return BAD("rope[%d]: dims is %d, it must be even", i, r->dims);
	if (!(r->theta > 1))
		return BAD("rope[%d]: theta is %g, it must be above 1", i, r->theta);
	if ((dynamic || yarn || llama3 || linear || proportional) && !(r->factor > 0) &&
	    !(linear && r->factor < 0))
		return BAD("rope[%d]: scaling %s has factor %g, it must be above 0", i, s,
		           r->factor);
	if ((dynamic || yarn || llama3 || longrope) && !(r->original_positions > 1))
		return BAD("rope[%d]: scaling %s has original_positions %g, it must be above 1", i,
		           s, r->original_positions);
	if (proportional && !(r->turning >= 0 && r->turning <= 1))
		return BAD("rope[%d]: scaling proportional has turning %g, expected 0 to 1", i,
		           r->turning);
	if (dynamic && r->dims < 4)
		return BAD("rope[%d]: scaling dynamic needs at least 4 dims", i);
	if (yarn && !(r->beta_fast > 0 && r->beta_slow > 0))
		return BAD("rope[%d]: scaling yarn has beta_fast %g and beta_slow %g, they must be "
		           "above 0",
		           i, r->beta_fast, r->beta_slow);
	if (llama3 && !(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor))
		return BAD("rope[%d]: scaling llama3 has low_freq_factor %g and high_freq_factor "
		           "%g, expected 0 < low < high",
		           i, r->low_freq_factor, r->high_freq_factor);
	if (plan_rope_sections(r) && !r->interleaved &&
	    r->section[0] + r->section[1] + r->section[2] != r->dims / 2)
		return BAD("rope[%d]: sections add up to %d pairs, dims is %d", i,
		           r->section[0] + r->section[1] + r->section[2], r->dims);
	if (plan_rope_sections(r) && strcmp(r->frequencies, "whole") &&
	    strcmp(r->frequencies, "restart") && strcmp(r->frequencies, "alternate"))
		return BAD("rope[%d]: unknown frequencies \"%s\"", i, r->frequencies);
	/* frequencies of interleaved sections need "whole": other forms are written section by
	 * section, and only contiguous sections are known to fill the table */
	if (plan_rope_sections(r) && r->interleaved && strcmp(r->frequencies, "whole"))
		return BAD("rope[%d]: interleaved sections have the frequencies of the whole head, "
		           "not \"%s\"",
		           i, r->frequencies);
	bool tensors = r->factors_tensor[0] && r->factors_tensor[1];
	if (longrope && !(tensors && !r->n_short && !r->n_long) &&
	    (r->n_short != r->dims / 2 || r->n_long != r->dims / 2))
		return BAD("rope[%d]: scaling longrope has %d short and %d long factors, expected "
		           "%d of each",
		           i, r->n_short, r->n_long, r->dims / 2);
	if (!all_positive(r->short_factor, r->n_short) || !all_positive(r->long_factor, r->n_long))
		return BAD("rope[%d]: a factor is not above 0", i);
	if (r->factors_tensor[1] && (!r->factors_tensor[0] || !(r->original_positions > 1)))
		return BAD("rope[%d]: factors by length need both tensors and original_positions",
		           i);
	return LLMC_OK;
}

/* Accepts a relative path that stays inside the artifact. */
static bool
path_inside(const char *s)
{
	if (!*s || *s == '/')
		return false;
	while (*s) {
		size_t n = strcspn(s, "/");
		if (n == 0 || (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.'))
			return false;
		for (size_t i = 0; i < n; i++)
			if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f || s[i] == '\\')
				return false;
		s += n;
		if (*s && !*++s)
			return false;
	}
	return true;
}

static bool
is_name(const char *name)
{
	const char *s = name;

	while ((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_' ||
	       (s > name && *s >= '0' && *s <= '9'))
		s++;
	return !*s && s > name && s - name <= 200;
}

bool
plan_map_fits(const PlanMap *m, const PlanKernel *k)
{
	bool swizzle = m->swizzle == 0 || m->swizzle == 32 || m->swizzle == 64 || m->swizzle == 128;

	if (m->arg < 0 || m->arg >= k->n_arg || k->arg[m->arg].dir == DIR_ROPE ||
	    k->arg[m->arg].dir == DIR_NONE)
		return false;
	return swizzle && m->cols >= 8 && m->cols % 8 == 0 && m->box[0] % 8 == 0 &&
	       m->box[0] >= 8 && m->box[0] <= 256 && m->box[1] >= 1 && m->box[1] <= 256 &&
	       (m->swizzle == 0 || m->box[0] * 2 <= m->swizzle);
}

/* Returns whether the extent is contiguous rows of the step with this many elements each */
static bool
is_rows(const PlanKernelArg *a)
{
	return a->extent.sym == SYM_n_tok && a->extent.div <= 1 && a->extent.mul >= 1 &&
	       a->extent.mul <= INT32_MAX;
}

static bool
is_16_bit(const char *type)
{
	return !strcmp(type, "f16") || !strcmp(type, "bf16");
}

static bool
product_fits(const PlanGemm *p, const PlanKernel *k, const char **why)
{
	int n = k->n_arg;

	if (p->act < 0 || p->act >= n || p->w < 0 || p->w >= n || p->y < 0 || p->y >= n ||
	    p->add < -1 || p->add >= n)
		return *why = "a product must use arguments of this kernel", false;
	const PlanKernelArg *act = &k->arg[p->act], *w = &k->arg[p->w], *y = &k->arg[p->y],
	                    *add = p->add < 0 ? NULL : &k->arg[p->add];
	if ((act->dir != DIR_SCRATCH && act->dir != DIR_IN) || !is_16_bit(act->type) ||
	    !is_rows(act) || act->extent.mul % 8)
		return *why = "act of a product must be an input or scratch with rows of f16 or "
		              "bf16 in multiples of 16 bytes",
		       false;
	if (w->dir != DIR_IN || strcmp(w->type, "packed"))
		return *why = "w of a product must be a packed weight matrix", false;
	if ((y->dir != DIR_OUT && y->dir != DIR_SCRATCH) || p->y == p->act ||
	    (strcmp(y->type, "f32") && !is_16_bit(y->type)) || !is_rows(y))
		return *why =
		           "y of a product must be an output or scratch with rows of f32, f16 or "
		           "bf16",
		       false;
	if (add && (add->dir != DIR_IN || strcmp(add->type, "f32") || strcmp(y->type, "f32") ||
	            !is_rows(add) || add->extent.mul != y->extent.mul))
		return *why = "add of a product must be an f32 input with the columns of y", false;
	return true;
}

bool
plan_paths_fit(const PlanKernel *k, const char **why)
{
	const PlanGemm *p = plan_library_gemm(k);
	int products = 0, own = 0, library = 0;

	for (int i = 0; i < k->n_launch; i++) {
		products += !k->launch[i].fn;
		own += k->launch[i].path == PATH_OWN;
		library += k->launch[i].path == PATH_LIBRARY;
		if (!k->launch[i].fn && k->launch[i].path != PATH_LIBRARY)
			return *why = "a product must have path library", false;
	}
	if (products > 1)
		return *why = "a kernel may have at most one product", false;
	if (!p)
		return own + library == 0 ||
		       (*why = "a kernel without a product must have path any", false);
	if (!own)
		return *why = "a kernel with a product also needs launches of path own", false;
	return product_fits(p, k, why);
}

static llmc_status
check_kernel(const PlanKernel *k, llmc_error *err)
{
	const char *why;

	if (!path_inside(k->file) || strlen(k->file) > 200)
		return BAD("kernel %s: file \"%s\" is not a path inside the artifact", k->id,
		           k->file);
	if (!is_name(k->symbol))
		return BAD("kernel %s: symbol \"%s\" is not the name of a C function", k->id,
		           k->symbol);
	for (int i = 0; i < k->n_launch; i++)
		if (k->launch[i].fn && !is_name(k->launch[i].fn))
			return BAD("kernel %s: launch \"%s\" is not the name of a C function",
			           k->id, k->launch[i].fn);
	if (!plan_paths_fit(k, &why))
		return BAD("kernel %s: %s", k->id, why);
	for (int i = 0; i < k->n_map; i++)
		if (!plan_map_fits(&k->map[i], k))
			return BAD("kernel %s: map[%d] is not a valid tensor map: it needs an "
			           "argument in memory, columns and boxes in multiples of 16 "
			           "bytes, and a swizzle of 0, 32, 64 or 128 bytes that covers "
			           "the box",
			           k->id, i);
	for (int i = 0; i < k->n_arg; i++) {
		const PlanKernelArg *a = &k->arg[i];
		bool sized = a->dir == DIR_IN || a->dir == DIR_OUT || a->dir == DIR_INOUT ||
		             a->dir == DIR_SCRATCH;
		if (sized && strcmp(a->type, "packed") && strcmp(a->type, "u8") &&
		    (dtype_from_text(a->type) == DT_NONE ||
		     dtype_info(dtype_from_text(a->type))->block_elems != 1))
			return BAD("kernel %s: argument %s has the type \"%s\", expected f32, f16, "
			           "bf16, i32, i64, u8 or packed",
			           k->id, a->name, a->type);
		if (!strcmp(a->type, "packed") && a->dir != DIR_IN && a->dir != DIR_NONE)
			return BAD("kernel %s: argument %s: only inputs may be packed", k->id,
			           a->name);
	}
	return LLMC_OK;
}

/* Returns whether a persistent kernel may run the kernel's body. */
static bool
body_fits(const PlanKernel *body, const PlanLaunch *in)
{
	const PlanLaunch *u = &body->launch[0];

	return body->n_launch == 1 && u->fn && !body->n_map && u->block <= in->block &&
	       u->cluster == 1 && !u->rounds && u->shared <= in->shared;
}

static llmc_status
check_persistent(const Plan *p, llmc_error *err)
{
	const PlanPersistent *x = &p->persistent;
	const PlanKernel *k = &p->kernel[x->kernel];
	const PlanLaunch *u = &k->launch[0];

	if (!x->n_body)
		return LLMC_OK;
	if (k->n_arg || k->n_map || k->n_launch != 1 || !u->fn || u->block != PLAN_BODY_THREADS ||
	    u->cluster != 1 || u->grid[0].sym != SYM_n_sm || u->grid[0].mul != 1 ||
	    u->grid[0].div != 1 || u->grid[1].sym != SYM_one || u->grid[1].mul != 1 ||
	    u->grid[2].sym != SYM_one || u->grid[2].mul != 1)
		return BAD("persistent: kernel %s needs no arguments and one launch of a CTA of %d "
		           "threads per SM",
		           k->id, PLAN_BODY_THREADS);
	for (int i = 0; i < x->n_body; i++)
		if (!body_fits(&p->kernel[x->body[i]], u))
			return BAD("persistent: kernel %s cannot run the body of %s", k->id,
			           p->kernel[x->body[i]].id);
	if (p->phase[0].n_step < 2)
		return BAD("persistent: a step of fewer than two ops");
	for (int i = 0; i < p->phase[0].n_step; i++)
		if (plan_body_of(x, p->phase[0].step[i].kernel) < 0)
			return BAD("persistent: step[%d] of phase %s has no body", i,
			           p->phase[0].id);
	return LLMC_OK;
}

llmc_status
plan_check(const Plan *p, llmc_error *err)
{
	const PlanBuffer *out;

	for (int i = 0; i < p->n_tensor; i++)
		TRY(check_tensor(&p->tensor[i], err));
	for (int i = 0; i < p->n_pool; i++)
		TRY(check_pool(p, &p->pool[i], err));
	for (int i = 0; i < p->n_rope; i++)
		TRY(check_rope(&p->rope[i], i, err));
	for (int i = 0; i < p->n_buffer; i++) {
		const PlanBuffer *b = &p->buffer[i];
		if (dtype_info(b->dtype)->block_elems != 1)
			return BAD("buffer %s: activations of type %s are not supported", b->id,
			           dtype_text(b->dtype));
		if (!plan_extent_within(&b->extent, dtype_info(b->dtype)->block_bytes,
		                        &p->slot[b->slot], 1))
			return BAD("buffer %s does not fit slot %d for all values of the symbols",
			           b->id, b->slot);
	}
	for (int i = 0; i < p->n_kernel; i++)
		TRY(check_kernel(&p->kernel[i], err));
	TRY(check_persistent(p, err));
	for (int i = 0; i < p->n_tensor && !p->lora; i++)
		for (int k = 0; k < p->tensor[i].n_src && !p->tensor[i].factor; k++)
			if (p->tensor[i].src[k].lora)
				return BAD("tensor %s: a source names module %s of an adapter, "
				           "but the plan has no adapter",
				           p->tensor[i].id, p->tensor[i].src[k].lora);
	out = &p->buffer[p->logits];
	const bool last = !plan_hands_on(p);
	/* the CPU's part of a model on two devices has no output, so any of its buffers may be
	 * named */
	const int64_t width = p->partition ? out->extent.mul : last ? plan_out_width(p) : p->hidden;
	const PlanExtent rows = { last && !p->partition ? SYM_n_out : SYM_n_tok, width, 1 };
	for (int i = 0; i < p->n_pool && p->stages * p->partitions > 1; i++)
		if (p->pool[i].keep > p->window || p->pool[i].recent || p->pool[i].sinks)
			return BAD("pool %s keeps %lld positions, but window is %lld",
			           p->pool[i].id, (long long)p->pool[i].keep, (long long)p->window);
	for (int i = 0; i < p->n_pool; i++)
		if (p->pool[i].segment && (p->vision != VISION_TOWER || !p->encoder ||
		                           p->pool[i].segment > PLAN_MOST_SEGMENT ||
		                           p->pool[i].segment != plan_segment(p)))
			return BAD("pool %s: segment = %lld, which a tower has, once and up to %d",
			           p->pool[i].id, (long long)p->pool[i].segment, PLAN_MOST_SEGMENT);
	if (p->kv_host && (p->prompt_whole || plan_has_state(p)))
		return BAD("kv_host: the prefix cache does not hold pages of models with "
		           "recurrent states or prompt_whole");
	if (p->partitions > 1 && (p->ranks * p->stages > 1 || p->outputs_rows || p->encoder ||
	                          p->output == LLMC_OUTPUT_LABELS))
		return BAD("partitions: a model on two devices has one rank and one stage, and "
		           "its output is logits or hidden states");
	if (p->stages > 1 && p->output == LLMC_OUTPUT_LABELS)
		return BAD("a model with labels cannot have stages: the first stage has no label "
		           "count");
	if (out->dtype != DT_F32 || !plan_extent_within(&rows, 4, &out->extent, 4) ||
	    out->extent.mul != width)
		return BAD("buffer %s cannot hold %s%s: expected f32, %s rows of %lld", out->id,
		           last ? "the " : "the residual stream of the stage",
		           last ? plan_output_name[p->output] : "", plan_sym_text[rows.sym],
		           (long long)width);
	const PlanBuffer *rows_out = &p->buffer[p->rows];
	const int64_t given = p->outputs_rows ? rows_out->extent.mul : 0;
	const PlanExtent all = { SYM_n_tok, given, 1 };
	if (p->outputs_rows && (p->ranks > 1 || p->stages > 1 || p->output != LLMC_OUTPUT_LOGITS))
		return BAD("outputs_rows needs a model with logits and without stages");
	if (p->outputs_rows &&
	    (rows_out->dtype != DT_F32 || !plan_extent_within(&all, 4, &rows_out->extent, 4) ||
	     given % p->hidden || (p->takes_rows && given != p->hidden)))
		return BAD("buffer %s cannot hold the rows for a draft head: expected f32, n_tok "
		           "rows of %lld or, for a draft checkpoint, a multiple of it",
		           rows_out->id, (long long)p->hidden);
	if (p->draft.row_width &&
	    (!p->takes_rows || p->draft.row_width != p->draft.own_at + p->hidden))
		return BAD("draft: a row has %lld elements, expected those of the model's rows, "
		           "%lld, and %lld of its own",
		           (long long)p->draft.row_width, (long long)p->draft.own_at,
		           (long long)p->hidden);
	for (int i = 0; i < p->n_tensor && !p->draft.model; i++)
		for (int k = 0; k < p->tensor[i].n_src; k++)
			if (p->tensor[i].src[k].name[0] == '@')
				return BAD("tensor %s: the source %s is in the checkpoint of "
				           "another model, which the plan does not name",
				           p->tensor[i].id, p->tensor[i].src[k].name);
	if (p->encoder && (!p->prompt_whole || p->output == LLMC_OUTPUT_LOGITS || p->stages > 1 ||
	                   p->ranks > 1 || plan_has_state(p)))
		return BAD(
		    "token_types: an encoder has prompt_whole, rows or labels as its output, "
		    "one rank and no recurrent states");
	for (int i = 0; i < p->n_pool && p->encoder; i++)
		if (p->pool[i].n_layers != 1 || p->pool[i].keep)
			return BAD("pool %s: an encoder has one layer slot without a window",
			           p->pool[i].id);
	if (p->prompt_whole && (p->prefix_mark >= p->vocab || p->prefix_end >= p->vocab))
		return BAD("prefix_mark or prefix_end is not a token");
	return plan_check_steps(p, err);
}
