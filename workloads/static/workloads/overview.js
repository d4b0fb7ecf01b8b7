/* Refreshes the overview while it is seen. What has not changed stays as it is: open tables, the focus, and what a
   screen reader has said. */
"use strict";
(function () {
    const overview = document.getElementById("workloads-overview");
    if (!overview) {
        return;
    }
    const said = overview.dataset;
    const every = Number(said.interval) * 1000;
    const old = 4 * every;
    const age = overview.querySelector('[data-role="age"]');
    const button = overview.querySelector('[data-role="stop"]');
    let readAt = Date.now() - Number(said.age) * 1000;
    let triedAt = Date.now();
    let isStopped = false;
    let isAsking = false;
    let trouble = "";

    const tell = function () {
        const passed = Math.max(0, Date.now() - readAt);
        const sentence = trouble || (isStopped ? said.saidStopped : said.saidFresh);
        age.textContent = sentence.replace("%s", String(Math.floor(passed / 1000)));
        overview.classList.toggle("workloads-is-old", passed > old);
    };

    const parts = function (root) {
        return new Map(Array.from(root.querySelectorAll("[data-part]"), (part) => [part.dataset.part, part]));
    };

    const put = function (mine, theirs) {
        if (mine.innerHTML === theirs.innerHTML) {
            return;
        }
        const open = new Set(Array.from(mine.querySelectorAll("details[open]"), (details) => details.id));
        const focus = mine.contains(document.activeElement) ? document.activeElement : null;
        const scrolled = Array.from(mine.querySelectorAll("[tabindex]"), (region) => [region.scrollLeft, region.scrollTop]);
        for (const details of theirs.querySelectorAll("details")) {
            details.open = open.has(details.id);
        }
        // A node that is focused, and would be gone, has its successor in the same place.
        const path = [];
        for (let node = focus; node && node !== mine; node = node.parentElement) {
            path.unshift(Array.from(node.parentElement.children).indexOf(node));
        }
        mine.replaceChildren(...document.importNode(theirs, true).childNodes);
        mine.querySelectorAll("[tabindex]").forEach(function (region, index) {
            if (scrolled[index]) {
                [region.scrollLeft, region.scrollTop] = scrolled[index];
            }
        });
        if (focus) {
            const successor = path.reduce((node, index) => node && node.children[index], mine);
            if (successor) {
                successor.focus({ preventScroll: true });
            }
        }
    };

    const show = function (text) {
        const page = new DOMParser().parseFromString(text, "text/html");
        const fresh = page.getElementById("workloads-overview");
        if (!fresh) {
            trouble = said.saidLoggedOut;
            return;
        }
        const mine = parts(overview);
        const theirs = parts(fresh);
        const isSame = mine.size === theirs.size && Array.from(theirs.keys()).every((name) => mine.has(name));
        if (!isSame) {
            // From no work to some, or back: another page.
            location.reload();
            return;
        }
        theirs.forEach((part, name) => put(mine.get(name), part));
        const now = fresh.querySelector(".workloads-now");
        overview.querySelector(".workloads-now").className = now.className;
        readAt = Date.now() - Number(fresh.dataset.age) * 1000;
        trouble = "";
    };

    const ask = async function () {
        isAsking = true;
        triedAt = Date.now();
        try {
            const answer = await fetch(said.url, {
                credentials: "same-origin",
                headers: { "X-Requested-With": "XMLHttpRequest" },
                redirect: "manual",
                signal: AbortSignal.timeout(every),
            });
            if (answer.ok) {
                show(await answer.text());
            } else {
                const isRefused = answer.type === "opaqueredirect" || answer.status === 403;
                trouble = isRefused ? said.saidLoggedOut : said.saidFailed;
            }
        } catch {
            trouble = said.saidFailed;
        }
        isAsking = false;
        tell();
    };

    const tick = function () {
        if (document.visibilityState !== "visible") {
            return;
        }
        if (!isStopped && !isAsking && Date.now() - triedAt >= every) {
            ask();
        }
        tell();
    };

    button.hidden = false;
    button.addEventListener("click", function () {
        isStopped = !isStopped;
        button.textContent = isStopped ? said.saidGo : said.saidStop;
        triedAt = isStopped ? triedAt : 0;
        tick();
    });
    document.addEventListener("visibilitychange", tick);
    setInterval(tick, 1000);
    tell();
})();
