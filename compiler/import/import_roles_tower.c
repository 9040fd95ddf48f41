/* Tensors of a vision tower outside its layers */
#include "compiler/import/import_check.h"

void
import_tower_roles(const Spec *s, RoleList *list)
{
	const int64_t merged = spec_merged(s);

	ROLE("patch", s->hidden, s->vision.width, s->vision.bias);
	if (s->vision.second_frame)
		ROLE("patch_2", s->hidden, s->vision.width, false);
	if (s->vision.class_row)
		ROLE("class", 1, s->hidden, false);
	if (s->vision.class_row && s->vision.bias)
		ROLE("patch_bias", 1, s->hidden, false);
	if (s->vision.positions)
		ROLE("patch_pos", spec_interpolates(s) ? s->hidden : s->vision.positions,
		     spec_interpolates(s) ? s->vision.positions : s->hidden, false);
	if (s->vision.merge_width)
		ROLE("merge", s->vision.merge_width, merged, false);
	if (strcmp(s->vision.merged_norm, "none") != 0)
		ROLE("merged_norm", merged, 0,
		     s->norm.bias && !strcmp(s->vision.merged_norm, "layer"));
	if (s->vision.out)
		ROLE("project", s->vision.inner ? s->vision.inner : s->vision.out,
		     spec_projector_in(s), s->vision.out_bias);
	if (s->vision.inner)
		ROLE("project_out", s->vision.out, s->vision.inner, s->vision.out_bias);
}

void
import_deep_roles(const Spec *s, RoleList *list)
{
	const int64_t merged = spec_merged(s), inner = s->vision.inner;

	ROLE("deep_norm", merged, 0, s->norm.bias);
	ROLE("deep_project", inner ? inner : s->vision.out, merged, s->vision.out_bias);
	if (inner)
		ROLE("deep_project_out", s->vision.out, inner, s->vision.out_bias);
}
