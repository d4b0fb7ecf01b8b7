"""The HTTP interface: what requesters, workers and operators say over the wire, put to the authority.

A request goes through these, in this order:

- `base`: authentication, throttles, and every error in the one form;
- `wire`: the body, read up to the site's limit and not further, as strict JSON;
- `bodies`: its shape, field by field; the bounds are the authority's to judge;
- `access`: who the caller is, what it may see and do: the one place that narrows a queryset;
- `admissions`, `claims`, `fenced`, `interventions`, `reading`, `figures`: one call of the authority each;
- `answers`: what the authority returned, as JSON.

No rule stands here, and nothing is written here but through the authority's verbs.
"""
