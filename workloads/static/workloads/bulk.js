/* Lets an action on many go on by itself: one request after another, each about a second of work, until the stage is
   another, somebody pauses it, or something is wrong. Without this script the button takes one such step. */
"use strict";
(() => {
    const PATIENCE_MS = 60_000;
    const part = document.getElementById("bulk");
    const form = part && part.querySelector("form[data-going]");
    if (!form) {
        return;
    }
    const bar = part.querySelector("progress");
    const trouble = part.querySelector("[data-trouble]");
    let going = false;
    let busy = false;

    function show(isGoing) {
        going = isGoing;
        part.classList.toggle("workloads-going", isGoing);
        part.classList.toggle("workloads-still", !isGoing);
    }

    function tell(words) {
        trouble.textContent = words;
        trouble.hidden = !words;
    }

    function draw(answer) {
        bar.max = answer.most;
        bar.value = answer.value;
        for (const place of part.querySelectorAll("[data-number]")) {
            place.textContent = answer[place.dataset.number];
        }
    }

    async function step() {
        const response = await fetch(form.action, {
            method: "POST",
            body: new FormData(form),
            headers: { Accept: "application/json" },
            credentials: "same-origin",
            redirect: "error",
            // A server that is frozen says nothing: that is trouble too.
            signal: AbortSignal.timeout(PATIENCE_MS),
        });
        if (!(response.headers.get("Content-Type") || "").startsWith("application/json")) {
            throw new Error(String(response.status));
        }
        return response.json();
    }

    async function go() {
        tell("");
        show(true);
        if (busy) {
            return;
        }
        busy = true;
        while (going) {
            let answer;
            try {
                answer = await step();
            } catch {
                tell(form.dataset.going);
                break;
            }
            if (answer.most !== undefined && answer.stage === part.dataset.stage) {
                draw(answer);
            }
            if (answer.trouble) {
                tell(answer.trouble);
                break;
            }
            if (answer.stage !== part.dataset.stage) {
                window.location.reload();
                return;
            }
        }
        busy = false;
        show(false);
    }

    form.addEventListener("submit", (event) => {
        event.preventDefault();
        go();
    });
    part.querySelector("[data-pause]").addEventListener("click", () => {
        show(false);
    });
    if (window.location.hash === "#going") {
        // Only whoever has just begun or confirmed it: an address that is passed on drives nothing.
        window.history.replaceState(null, "", window.location.pathname + window.location.search);
        go();
    }
})();
