/* Reads the RoPE tables of a plan. */
#include "plan/plan_read.h"

static const double *
get_nums(PlanReader *r, json_t *j, const char *key, int *n)
{
	json_t *a = rd_get_array(r, j, key, 0, 1 << 16, n);
	double *v = NEW(r->arena, double, *n + 1);

	for (int i = 0; i < *n; i++)
		v[i] = rd_num_value(r, json_array_get(a, (size_t)i), key);
	return v;
}

#define ROPE_KEYS                                                                                  \
	"theta dims scaling factor turning original_positions low_freq_factor "                    \
	"high_freq_factor beta_fast beta_slow attention_factor mscale mscale_all_dim truncate "    \
	"short_factor long_factor factors_tensor axis"

static void
read_sections(PlanReader *r, json_t *j, PlanRope *o)
{
	int n;
	json_t *a = rd_get_array(r, j, "sections", 3, 3, &n);

	for (int i = 0; i < 3; i++) {
		json_t *v = json_array_get(a, (size_t)i);
		const json_int_t k = json_is_integer(v) ? json_integer_value(v) : -1;
		if (k < 0 || k > o->dims / 2)
			rd_bad(r, "sections", "has a number outside of 0 .. %d", o->dims / 2);
		o->section[i] = (int)k;
	}
	o->interleaved = rd_get_bool(r, j, "interleaved");
	o->frequencies = rd_get_str(r, j, "frequencies");
}

void
rd_rope(PlanReader *r, json_t *j, PlanRope *o)
{
	const bool sections = json_object_get(j, "sections");
	int n;

	rd_keys(r, j, sections ? ROPE_KEYS " sections interleaved frequencies" : ROPE_KEYS);
	*o = (PlanRope){
		.theta = rd_get_num(r, j, "theta"),
		.dims = (int)rd_get_int(r, j, "dims", 2, 1 << 16),
		.scaling = rd_get_str(r, j, "scaling"),
		.factor = rd_get_num(r, j, "factor"),
		.turning = rd_get_num(r, j, "turning"),
		.original_positions = rd_get_num(r, j, "original_positions"),
		.low_freq_factor = rd_get_num(r, j, "low_freq_factor"),
		.high_freq_factor = rd_get_num(r, j, "high_freq_factor"),
		.beta_fast = rd_get_num(r, j, "beta_fast"),
		.beta_slow = rd_get_num(r, j, "beta_slow"),
		.attention_factor = rd_get_num(r, j, "attention_factor"),
		.mscale = rd_get_num(r, j, "mscale"),
		.mscale_all_dim = rd_get_num(r, j, "mscale_all_dim"),
		.truncate = rd_get_bool(r, j, "truncate"),
		.axis = (int)rd_get_int(r, j, "axis", 0, 1),
	};
	o->short_factor = get_nums(r, j, "short_factor", &o->n_short);
	o->long_factor = get_nums(r, j, "long_factor", &o->n_long);
	json_t *a = rd_get_array(r, j, "factors_tensor", 2, 2, &n);
	for (int i = 0; i < 2; i++) {
		json_t *v = json_array_get(a, (size_t)i);
		o->factors_tensor[i] =
		    json_is_null(v) ? NULL : rd_str_value(r, v, "factors_tensor");
	}
	if (sections)
		read_sections(r, j, o);
}
