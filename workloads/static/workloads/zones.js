/* Tells the admin the browser's time zone, in a cookie for the admin's pages alone, unless another was chosen. */
"use strict";
(function () {
    const form = document.querySelector(".workloads-zone form");
    const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (!form || !own) {
        return;
    }
    const read = function () {
        const found = document.cookie.split("; ").find((cookie) => cookie.startsWith("workloads_tz="));
        return found ? found.slice("workloads_tz=".length).replace(/^"|"$/g, "") : "";
    };
    const told = read();
    if (told === "site" || told === "UTC" || told === own) {
        return;
    }
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `workloads_tz=${own}; Path=${form.dataset.path}; Max-Age=31536000; SameSite=Lax${secure}`;
    // Once: where cookies are not kept, or the zone is the same, this page stays as it is.
    if (read() === own && form.dataset.name !== own && "mayReload" in form.dataset) {
        location.reload();
    }
})();
